"""A job that fails is run again; one that cannot succeed is buried at once."""

import asyncio
import os

from chasquimq import BackoffSpec, Job, Queue, UnrecoverableError, Worker
from chasquimq.server import SessionServer

QUEUE = "example-retries"


# region handler
async def charge(job: Job) -> None:
    print(f"order {job.data['order']}: run {job.run_number}")
    if job.data["card"] == "expired":
        raise UnrecoverableError("the card has expired")
    if job.run_number < 3:
        raise TimeoutError("the bank did not answer")
    print(f"order {job.data['order']}: charged")


# endregion


# region dead
def report(job: Job) -> None:
    print(f"order {job.data['order']}: buried")


# endregion


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        # region add
        backoff = BackoffSpec.exponential(20, multiplier=2.0, max_ms=1_000, jitter_ms=0)
        await queue.add("charge", {"order": 1, "card": "good"}, attempts=5, backoff=backoff)
        await queue.add("charge", {"order": 2, "card": "expired"}, attempts=5)
        # endregion
        await Worker(QUEUE, charge, redis_url=url, concurrency=1, on_dead=report).run_until_idle()
        counts = await queue.counts()
        print(f"left to do: {counts.backlog}")


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
