"""Heavy plain functions run in child processes, where they can be stopped."""

import asyncio
import os
import time

from chasquimq import Job, Queue, Worker
from chasquimq.server import SessionServer

QUEUE = "example-processes"


# region handlers
def count_primes(job: Job) -> None:
    below = job.data["below"]
    found = sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, below))
    print(f"{found} primes below {below}", flush=True)


def never_ends(job: Job) -> None:
    time.sleep(3_600)


# endregion


def report_dead(job: Job) -> None:
    print(f"{job.name} was stopped")


async def main(url: str) -> None:
    async with Queue(QUEUE, redis_url=url) as queue:
        await queue.add("count-primes", {"below": 10_000})
        await queue.add("never-ends", None, attempts=1)
    # region worker
    worker = Worker(
        QUEUE,
        {"count-primes": count_primes, "never-ends": never_ends},
        redis_url=url,
        pool="process",
        concurrency=2,
        timeout_ms=1_000,
        on_dead=report_dead,
    )
    # endregion
    await worker.run_until_idle()


if __name__ == "__main__":
    server = SessionServer()  # started only when CHASQUI_REDIS_URL names none
    asyncio.run(main(os.environ.get("CHASQUI_REDIS_URL") or server.start().url))
    server.stop()
