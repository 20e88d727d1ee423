"""What the programs share: where the queue is, workers that end, and a way out.

Everything here is written for the original's package and runs with either.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager

from chasquimq import Consumer, Worker

URL, QUEUE = sys.argv[1:3]
QUICK = {"redis_url": URL, "concurrency": 1, "read_block_ms": 50}


def play(main) -> None:
    """Run the program; leave at once, because the original may crash while Python ends."""
    asyncio.run(_play(main))


async def _play(main) -> None:
    async with asyncio.timeout(20):
        await main()
    sys.stdout.flush()
    os._exit(0)


@asynccontextmanager
async def working(handler, **options):
    """A worker beside the program; `await ended(n)` waits for so many ends of the handler.

    One for the whole program: the original's closed workers go on taking jobs for a while.
    """
    ended = asyncio.Semaphore(0)
    worker = Worker(QUEUE, counted(handler, ended), **{**QUICK, **options})
    running = asyncio.ensure_future(worker.run())
    yield waiter(ended)
    await worker.close()
    await running


@asynccontextmanager
async def consuming(handler, **options):
    """The same with the handle below a worker."""
    ended = asyncio.Semaphore(0)
    consumer = Consumer(URL, QUEUE, read_block_ms=50, **options)
    running = asyncio.ensure_future(consumer.run(counted(handler, ended)))
    yield waiter(ended)
    consumer.shutdown()
    await running


def waiter(ended: asyncio.Semaphore):
    async def wait(count: int) -> None:
        for _ in range(count):
            await ended.acquire()

    return wait


def counted(handler, ended: asyncio.Semaphore):
    async def run(job):
        try:
            return await handler(job)
        finally:
            ended.release()

    return run


async def until(condition, within_s: float = 10.0) -> None:
    """Wait until the coroutine function answers something true."""
    until_s = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() > until_s:
            raise TimeoutError("what the program waits for did not happen")
        await asyncio.sleep(0.01)
