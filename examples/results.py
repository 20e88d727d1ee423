"""Wait for what a handler returns, or learn why there is no result."""

import asyncio
import os

from chasquimq import Job, JobFailed, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-results"


# region handlers
async def add_up(job: Job) -> int:
    return sum(job.data)


async def divide(job: Job) -> float:
    return job.data[0] / job.data[1]


# endregion


async def main(url: str) -> None:
    # region worker
    handlers = {"add-up": add_up, "divide": divide}
    worker = Worker(QUEUE, handlers, redis_url=url, store_results=True, result_ttl_ms=60_000)
    # endregion
    running = asyncio.create_task(worker.run())
    async with Queue(QUEUE, redis_url=url) as queue:
        await ask(queue)
    await worker.close()
    await running


async def ask(queue: Queue) -> None:
    # region wait
    job = await queue.add("add-up", [1, 2, 3])
    print(f"the sum is {await job.wait_for_result(timeout=10)}")
    # endregion
    # region failed
    hopeless = await queue.add("divide", [1, 0], attempts=1)
    try:
        await hopeless.wait_for_result(timeout=10)
    except JobFailed as failed:
        print(f"{failed.reason}: {failed.error}")
    # endregion
    # region later
    print(f"still kept: {await queue.get_job_result(job.id)}")
    print(f"many at once: {await queue.get_job_result_bulk([job.id, hopeless.id])}")
    # endregion


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
