"""A worker as a process of its own: opens what it needs, runs until it is stopped, closes it again."""

import asyncio
import os
import signal

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-process"


# region hooks
async def open_database(worker: Worker) -> None:
    worker.state["database"] = "the database"
    print("opened")


async def close_database(worker: Worker) -> None:
    del worker.state["database"]
    print(f"closed after {worker.health().completed} jobs")


# endregion


# region handler
async def save(job: Job) -> None:
    print(f"saved row {job.data['row']} to {job.state['database']}")


# endregion


# region run
async def run(url: str) -> None:
    worker = Worker(
        QUEUE,
        save,
        redis_url=url,
        on_startup=open_database,
        on_shutdown=close_database,
    )
    await worker.run(handle_signals=True)


# endregion


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add_bulk([{"name": "save", "data": {"row": row}} for row in (1, 2)])
        running = asyncio.create_task(run(url))
        while (await queue.counts()).backlog:  # noqa: ASYNC110 - no event reports an empty queue
            await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)  # as a process manager would
    await running


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
