"""Fills a queue before it is measured; nothing of this counts but how long it took."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.payload import PAYLOAD
from benchmarks.scenario import JOB_NAME, QUEUE, RUN_ONCE, Work
from chasquimq.queue import Queue

JOBS_PER_CALL = 1_000
JOBS_PER_CALL_BYTES_MAX = 4 * 1024 * 1024
CALLS_IN_FLIGHT = 4
# So far off that no run sees it come due.
FAR_MS = 24 * 3_600_000
_AT_ONCE = {"kind": "fixed", "delay_ms": 0, "jitter_ms": 0}


async def preload(
    url: str, jobs: int, work: Work = RUN_ONCE, payload: dict[str, str] = PAYLOAD
) -> float:
    """Fill the queue for a worker of any side: all read the same bytes. Seconds it took."""
    job: dict[str, Any] = {"name": JOB_NAME, "data": payload}
    if work.delay_ms:
        job |= {"delay_ms": work.delay_ms}
    if work.fails_once:
        job |= {"attempts": work.runs_per_job, "backoff": _AT_ONCE}
    sizes = iter(_sizes(jobs, _job_bytes(payload)))
    async with Queue(QUEUE, redis_url=url) as queue:

        async def fill() -> None:
            for size in sizes:
                await queue.add_bulk([job] * size)

        began_s = time.perf_counter()
        await asyncio.gather(*(fill() for _ in range(CALLS_IN_FLIGHT)))
        return time.perf_counter() - began_s


def _sizes(jobs: int, job_bytes: int) -> list[int]:
    each = max(1, min(JOBS_PER_CALL, JOBS_PER_CALL_BYTES_MAX // job_bytes))
    return [min(each, jobs - start) for start in range(0, jobs, each)]


def _job_bytes(payload: dict[str, str]) -> int:
    return sum(len(name) + len(text) for name, text in payload.items())
