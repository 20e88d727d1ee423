"""Delays in every form a caller may give them."""

import time
from datetime import UTC, datetime, timedelta

from stage import QUEUE, URL, play, working

from chasquimq import Queue


async def main():
    queue = Queue(QUEUE, redis_url=URL)
    await queue.add("now", 0, delay_ms=0)
    now = datetime.now(UTC)
    due_s = {"now": 0.0, "past": 0.0, "in": 0.3, "fraction": 0.6, "delta": 0.9, "at": 1.2}
    began_s = time.time()
    await queue.add("at", 0, delay_ms=now + timedelta(milliseconds=1200))
    await queue.add("delta", 0, delay=timedelta(milliseconds=900))
    await queue.add("fraction", 0, delay_ms=600.9)
    await queue.add("in", 0, delay_ms=300)
    await queue.add("past", 0, delay_ms=datetime(2020, 1, 1))  # noqa: DTZ001 - a naive one means UTC

    async def handler(job):
        is_early = time.time() - began_s < due_s[job.name] - 0.05
        print("ran", job.name, "too early" if is_early else "in time")

    async with working(handler) as ended:
        await ended(len(due_s))
    await queue.close()


play(main)
