"""A worker outlives whatever is done to its keys, scripts and connections."""

from __future__ import annotations

import asyncio
import time

import pytest

from chasquimq import Worker
from chasquimq.settings import RetrySettings
from support.faultproxy import FaultProxy
from support.waiting import eventually, patience
from support.workers import RunningWorker


@pytest.fixture
async def seen(running_worker):
    """What one idle worker has run so far."""
    seen = []

    async def handler(job):
        seen.append(job.data)

    await running_worker(handler)
    return seen


async def delete_stream(raw):
    await raw("DEL", raw.keys.stream)


async def destroy_group(raw):
    await raw("XGROUP", "DESTROY", raw.keys.stream, "default")


async def delete_all(raw):
    keys = await raw("KEYS", raw.keys.stream.rpartition(":")[0].replace("{", "\\{") + ":*")
    await raw("DEL", *(keys or [raw.keys.stream]))


@pytest.mark.parametrize(
    "act", [delete_stream, destroy_group, delete_all], ids=lambda act: act.__name__
)
async def test_new_jobs_run_after_an_operator_deleted_the_keys(queue, raw, seen, act):
    async def is_acked():
        return await raw("XLEN", raw.keys.stream) == 0

    await queue.add("n", "before")
    await eventually(lambda: seen == ["before"])
    await eventually(is_acked)

    await act(raw)
    await queue.add("n", "after")

    await eventually(lambda: seen == ["before", "after"], within_s=2)


@pytest.mark.parametrize("act", [delete_stream, destroy_group], ids=lambda act: act.__name__)
async def test_a_busy_worker_survives_the_loss_of_its_group(queue, raw, running_worker, act):
    """Every slot is full, so nothing is read until what is held has found out that it is gone."""
    gate, seen = asyncio.Event(), []

    async def handler(job):
        seen.append(job.data)
        await gate.wait()
        if job.data == "fail":
            raise ValueError

    retry = RetrySettings(initial_backoff_ms=10)
    running = await running_worker(handler, concurrency=2, retry=retry, claim_min_idle_ms=1000)
    await queue.add_bulk([{"name": "n", "data": data} for data in ("fail", "ok", "waits")])
    await eventually(lambda: running.worker.health().waiting == 1)
    await asyncio.sleep(0.3)

    await act(raw)
    gate.set()
    await queue.add("n", "after")

    await eventually(lambda: "after" in seen, within_s=2)
    await eventually(lambda: running.worker.health().running == 0)


async def test_a_server_that_forgets_its_scripts_is_taught_again(queue, raw, running_worker):
    seen = []

    async def fails_once(job):
        seen.append(job.attempt)
        if job.attempt == 0:
            await raw("SCRIPT", "FLUSH")
            raise ValueError

    running = await running_worker(fails_once, retry=RetrySettings(initial_backoff_ms=10))
    await queue.add("n", None)

    await eventually(lambda: running.worker.health().completed == 1)
    await raw("SCRIPT", "FLUSH")
    await queue.add("n", None)
    await eventually(lambda: running.worker.health().completed == 2)
    assert seen == [0, 1, 0, 1]


async def test_jobs_go_on_when_every_connection_is_cut(queue, raw, running_worker):
    starts = {}

    async def handler(job):
        starts[job.data] = starts.get(job.data, 0) + 1
        await asyncio.sleep(0.002)

    running = await running_worker(handler, concurrency=20, claim_min_idle_ms=1000)
    adding = asyncio.create_task(adds(queue, 2000))
    # Whoever has never reached a server is told so at once; this queue has.
    await eventually(lambda: starts)
    for _ in range(5):
        await asyncio.sleep(0.1)
        await raw("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    await adding
    await eventually(lambda: is_empty(queue), within_s=8)
    extra = sum(starts.values()) - len(starts)
    print(f"connections cut 5 times: {len(starts)} of 2000 ran, {extra} extra starts")
    assert len(starts) == 2000
    assert extra <= 5 * 20
    assert running.worker.health().is_ok


async def test_an_outcome_whose_reply_was_lost_is_kept_until_it_is_confirmed(
    queue, raw, running_worker
):
    async def handler(job):
        await raw("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    running = await running_worker(handler)
    started_s = time.monotonic()
    await queue.add("n", None)

    await eventually(lambda: is_gone(raw), within_s=3)
    assert time.monotonic() - started_s < 3 * patience()
    health = running.worker.health()
    assert health.completed + health.unproven_outcomes == 1


async def test_a_job_whose_delivery_got_lost_on_the_way_runs_soon_and_uncharged(
    queue, queue_name, raw, url
):
    """It is this worker's for a lease of 30 s, though the worker has never seen it."""
    seen = []

    async def handler(job):
        seen.append((job.data, job.attempt))

    async with FaultProxy(url) as proxy:
        running = RunningWorker(Worker(queue_name, handler, redis_url=proxy.url))
        await running.until_consuming()
        # A queue that has dialled adds before the read under way ends.
        await queue.counts()
        proxy.drop_replies()
        await queue.add("n", "x")
        await eventually(raw.pending)
        proxy.thaw()
        proxy.cut()

        await eventually(lambda: seen, within_s=3)
        await running.stop()

    assert seen == [("x", 0)]
    assert await raw.pending() == []


async def test_what_a_worker_holds_stays_with_it_when_its_connections_break(
    queue, raw, running_worker
):
    gate, seen, others = asyncio.Event(), [], []

    async def slow(job):
        seen.append((job.data, job.attempt))
        await gate.wait()

    async def takes(job):
        others.append(job.data)

    holder = await running_worker(slow, concurrency=1, read_count=6)
    await queue.add_bulk([{"name": "n", "data": i} for i in range(5)])
    await eventually(lambda: holder.worker.health().waiting == 4)
    await running_worker(takes)

    await raw("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await asyncio.sleep(0.2)
    await eventually(lambda: holder.worker.health().is_consuming)
    await asyncio.sleep(0.8)
    gate.set()

    await eventually(lambda: len(seen) + len(others) >= 5)
    assert seen == [(i, 0) for i in range(5)]
    assert others == []


async def adds(queue, count):
    for at in range(0, count, 10):
        await queue.add_bulk([{"name": "n", "data": at + i} for i in range(10)])
        await asyncio.sleep(0.001)


async def is_gone(raw):
    return await raw("XLEN", raw.keys.stream) == 0


async def is_empty(queue):
    return (await queue.counts()).backlog == 0
