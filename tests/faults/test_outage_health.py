"""What a worker says of itself while its server is gone, and what it does without memory."""

from __future__ import annotations

import asyncio

import pytest

from support.waiting import eventually

pytestmark = pytest.mark.own_server


async def noop(job):
    return


async def test_a_worker_whose_server_is_gone_does_not_call_itself_consuming(server, running_worker):
    running = await running_worker(noop)
    server.kill()

    await eventually(lambda: not running.worker.health().is_consuming)
    server.restart()
    await eventually(lambda: running.worker.health().is_consuming)


async def test_a_worker_that_reconnects_without_memory_goes_on_acking(queue, raw, running_worker):
    gate = asyncio.Event()
    seen = []

    async def handler(job):
        seen.append(job.id)
        await gate.wait()

    await running_worker(handler, events="off")
    await queue.add("held", 1)
    await eventually(lambda: seen)
    await raw("CONFIG", "SET", "maxmemory", "1")
    await raw("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    gate.set()

    async def is_acked():
        return await raw("XLEN", raw.keys.stream) == 0

    await eventually(is_acked)
    await raw("CONFIG", "SET", "maxmemory", "0")


async def test_broken_entries_are_not_read_faster_than_they_are_buried(raw, running_worker):
    await raw("SET", raw.keys.dlq, "of the wrong type")
    for _ in range(100):
        await asyncio.gather(*(raw("XADD", raw.keys.stream, "*", "x", "1") for _ in range(50)))
    running = await running_worker(noop)
    await eventually(lambda: running.worker.health().unconfirmed >= 2_000)

    assert running.worker.health().unconfirmed < 3_000
    await raw("DEL", raw.keys.dlq)

    async def is_buried():
        return await raw("XLEN", raw.keys.dlq) == 5_000

    await eventually(is_buried, within_s=20)
