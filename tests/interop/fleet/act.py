"""One act of a fleet, played with whichever package this interpreter has; answers in JSON.

`act.py <url> <queue> <act> <arguments as JSON>`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from chasquimq import (
    BackoffSpec,
    Queue,
    QueueEvents,
    RepeatPattern,
    UnrecoverableError,
    Worker,
)

URL, QUEUE, ACT, ARGUMENTS = sys.argv[1:5]


async def add() -> list[str]:
    """Jobs of every kind; the ids of those that will complete."""
    async with Queue(QUEUE, redis_url=URL) as queue:
        jobs = [
            await queue.add("plain", {"n": 1}),
            await queue.add("", "nameless"),
            await queue.add("delayed", 2, delay_ms=200),
            await queue.add("own id", 3, delay_ms=200, job_id="mine"),
            await queue.add("retried", 4, attempts=2, backoff=BackoffSpec.fixed(1, 1)),
        ]
        jobs += await queue.add_bulk([{"name": "bulk", "data": data} for data in (5, 6)])
        await add_hopeless(queue)
        every = RepeatPattern.every(300)
        await queue.upsert_repeatable_job("repeated", b"\x00", repeat=every, limit=1)
        return [job.id for job in jobs]


async def add_hopeless(queue: Queue) -> None:
    await queue.add("buried", 7)
    await queue.add("given up", 8, attempts=1)


async def hopeless() -> None:
    """Only jobs that will be given up."""
    async with Queue(QUEUE, redis_url=URL) as queue:
        await add_hopeless(queue)


async def work(count: int, ends: int = 0) -> list:
    """Run until so many handlers have ended; what they saw.

    With `ends`, also until so many ends of jobs were told, and a read that brought nothing.
    """
    seen: list = []
    is_enough = asyncio.Event()

    async def handler(job):
        seen.append([job.name, repr(job.data), job.attempt])
        if len(seen) == count:
            is_enough.set()
        if job.name == "buried":
            raise UnrecoverableError("never")
        if job.name == "given up" or (job.name == "retried" and job.attempt == 0):
            raise ValueError("not now")
        return {"ran": job.data}

    options = {"concurrency": 1, "read_block_ms": 50, "scheduler_tick_ms": 50}
    worker = Worker(QUEUE, handler, redis_url=URL, store_results=True, **options)
    running = asyncio.ensure_future(worker.run())
    await is_enough.wait()
    if ends:
        await told(ends)
    await worker.close()
    await running
    return sorted(seen)


async def told(ends: int) -> None:
    """Return when the events tell of so many ends, and of an empty read before or after them."""
    was_drained = False
    async for event in QueueEvents(QUEUE, redis_url=URL, last_event_id="0", block_ms=100):
        ends -= event.name in ("completed", "dlq")
        was_drained |= event.name == "drained"
        if ends <= 0 and was_drained:
            return


async def results(*ids: str) -> list:
    async with Queue(QUEUE, redis_url=URL) as queue:
        return [repr(value) for value in await queue.get_job_result_bulk(ids)]


async def letters() -> list:
    async with Queue(QUEUE, redis_url=URL) as queue:
        return sorted([letter["name"], letter["reason"]] for letter in await queue.peek_dlq())


async def replay() -> int:
    async with Queue(QUEUE, redis_url=URL) as queue:
        return await queue.replay_dlq()


async def delay(*ids: str) -> None:
    async with Queue(QUEUE, redis_url=URL) as queue:
        for job_id in ids:
            await queue.add("delayed", 1, delay_ms=60_000, job_id=job_id)


async def cancel(*ids: str) -> list[bool]:
    async with Queue(QUEUE, redis_url=URL) as queue:
        return [await queue.cancel_delayed(job_id) for job_id in ids]


async def plans() -> list:
    async with Queue(QUEUE, redis_url=URL) as queue:
        listed = await queue.get_repeatable_jobs()
        return [[meta.key, meta.job_name, meta.limit] for meta in listed]


ACTS = (add, hopeless, work, results, letters, replay, delay, cancel, plans)


async def main() -> None:
    act = {act.__name__: act for act in ACTS}[ACT]
    async with asyncio.timeout(20):
        answer = await act(*json.loads(ARGUMENTS))
    print(json.dumps(answer), flush=True)
    os._exit(0)


asyncio.run(main())
