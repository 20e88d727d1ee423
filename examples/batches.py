"""Score many jobs with one call, each with an outcome of its own."""

import asyncio
import os

from chasquimq import Job, Queue, UnrecoverableError, Worker
from chasquimq.server import SessionServer

QUEUE = "example-batches"


# region handler
async def score(jobs: list[Job]) -> list[object]:
    print(f"{len(jobs)} jobs at once")
    return [
        UnrecoverableError("no amount") if job.data["amount"] is None else job.data["amount"] * 2
        for job in jobs
    ]


# endregion


async def main(url: str) -> None:
    # region worker
    worker = Worker(QUEUE, score, redis_url=url, batch=(4, 200), store_results=True)
    # endregion
    async with Queue(QUEUE, redis_url=url) as queue:
        jobs = await queue.add_bulk(
            [{"name": "score", "data": {"amount": amount}} for amount in (1, 2, None, 4)]
        )
        running = asyncio.create_task(worker.run())
        for job in (jobs[0], jobs[1], jobs[3]):
            print(f"{job.data['amount']} scores {await job.wait_for_result(timeout=10)}")
        await worker.close()
        await running
        (dead,) = await queue.peek_dlq()
        print(f"dead: {dead['error']}")


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
