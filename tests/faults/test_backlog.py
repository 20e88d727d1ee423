"""A backlog lives on the server: a worker's memory does not grow with it."""

from __future__ import annotations

import os

import pytest

from support.waiting import eventually

MIB = 1024 * 1024
IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
JOBS = 1_000_000 if IS_BIG else 100_000
PAYLOAD = "x" * 1024
# Nothing is read back from disk here, so nothing is written to it.
pytestmark = pytest.mark.own_server


@pytest.mark.timeout(900 if IS_BIG else 120)
async def test_a_worker_keeps_its_size_under_a_backlog(queue, fleet, kind):
    before = await size_of_an_idle_worker(fleet)
    await add(queue, JOBS, PAYLOAD, at_once=10_000)
    backlog = (await queue.counts()).ready

    worker = await fleet.start("noop")
    seen = await sizes_until_empty(worker, queue)

    grown = max(seen) - before
    print(f"{kind.label}: {backlog} jobs of 1 KiB: RSS {before / MIB:.1f} + {grown / MIB:.1f} MiB")
    assert backlog == JOBS
    assert grown < 64 * MIB


@pytest.mark.parametrize("fate", ["run", "buried"])
async def test_a_worker_keeps_its_size_among_large_entries(queue, fleet, kind, fate):
    """200 MiB wait; what is too large for this worker is buried, a little at a time."""
    options = {"max_payload_bytes": 1024 if fate == "buried" else MIB, "concurrency": 10}
    before = await size_of_an_idle_worker(fleet)
    await add(queue, 200, "x" * (MIB - 4096), at_once=10)

    worker = await fleet.start("noop", **options)
    seen = await sizes_until_empty(worker, queue)

    grown = max(seen) - before
    print(
        f"{kind.label}: 200 jobs of 1 MiB, {fate}: RSS {before / MIB:.1f} + {grown / MIB:.1f} MiB"
    )
    assert grown < 120 * MIB


async def size_of_an_idle_worker(fleet):
    worker = await fleet.start("noop")
    size = worker.rss_bytes
    worker.kill()
    return size


async def add(queue, count, payload, *, at_once):
    for _ in range(count // at_once):
        await queue.add_bulk([{"name": "n", "data": payload} for _ in range(at_once)])


async def sizes_until_empty(worker, queue):
    sizes = []

    async def is_empty():
        sizes.append(worker.rss_bytes)
        return (await queue.counts()).backlog == 0

    await eventually(is_empty, within_s=800 if IS_BIG else 50, what="the drain of the backlog")
    return sizes
