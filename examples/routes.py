"""One worker for several kinds of jobs: a handler for each name, plain or async."""

import asyncio
import os
import threading

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-routes"


# region handlers
async def send_email(job: Job) -> None:
    await asyncio.sleep(0.01)  # a mail server answers; other jobs run meanwhile
    print(f"email to {job.data['to']}")


def make_thumbnail(job: Job) -> None:
    thread = "a thread" if threading.current_thread() is not threading.main_thread() else "the loop"
    print(f"thumbnail of {job.data['path']}, made in {thread}")


# endregion


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add_bulk(
            [
                {"name": "send-email", "data": {"to": "ada@example.org"}},
                {"name": "make-thumbnail", "data": {"path": "cat.jpg"}},
                {"name": "send-email", "data": {"to": "alan@example.org"}},
            ]
        )
    # region worker
    worker = Worker(
        QUEUE,
        {"send-email": send_email, "make-thumbnail": make_thumbnail},
        redis_url=url,
        concurrency=1,
    )
    # endregion
    await worker.run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
