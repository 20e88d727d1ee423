"""A task that was written for Celery: its function takes a job, and callers add it by name."""

import asyncio
import os
from datetime import timedelta

from chasquimq import Job, Queue, RetryLater, Worker
from chasquimq.server import SessionServer

QUEUE = "example-receipts"
bank_answers = iter([False, True])


def bank_is_open() -> bool:
    return next(bank_answers)


# region handlers
def send_receipt(job: Job) -> str:
    if not bank_is_open():
        raise RetryLater(20)
    return f"receipt {job.data['order']} to {job.data['to']}"


handlers = {"send_receipt": send_receipt}
# endregion


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        # region add
        receipt = {"order": 7, "to": "ada@example.org"}
        job = await queue.add("send_receipt", receipt, delay=timedelta(seconds=0.1))
        # endregion
        await run_worker(url)
        # region result
        print(await queue.wait_for_result(job.id, timeout=5))
        # endregion


async def run_worker(url: str) -> None:
    """Stands for a process of its own."""
    await Worker(QUEUE, handlers, redis_url=url, store_results=True).run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
