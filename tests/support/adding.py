"""Adds through connections of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from chasquimq import Queue

ADD_S_MAX = 10


@asynccontextmanager
async def adding(queue_name: str) -> AsyncIterator[Callable[..., Awaitable[Queue]]]:
    """A function that adds a job at an address; its queues are closed at the end."""
    queues: list[Queue] = []

    async def add(url: str, **options) -> Queue:
        queues.append(Queue(queue_name, redis_url=url, **options))
        await asyncio.wait_for(queues[-1].add("n", 1), ADD_S_MAX)
        return queues[-1]

    yield add
    for queue in queues:
        await queue.close()
