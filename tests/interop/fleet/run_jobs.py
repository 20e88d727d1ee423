"""Runs jobs until it is killed, with whichever package this interpreter has.

`run_jobs.py <url> <queue> <consumer> <journal>`; the journal gets a line for every run.
"""

from __future__ import annotations

import asyncio
import os
import sys

from chasquimq import Worker

URL, QUEUE, CONSUMER, JOURNAL = sys.argv[1:5]
JOB_S = 0.02


async def main() -> None:
    journal = os.open(JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handler(job) -> None:
        os.write(journal, f"{CONSUMER} {job.name} {job.id}\n".encode())
        await asyncio.sleep(JOB_S)

    # A claim of three seconds is long for such jobs, and short for a test.
    options = {"claim_min_idle_ms": 3_000, "read_block_ms": 100, "read_count": 5}
    worker = Worker(
        QUEUE, handler, redis_url=URL, concurrency=5, consumer_id=CONSUMER, scheduler_tick_ms=100,
        **options,
    )  # fmt: skip
    await worker.run()


asyncio.run(main())
