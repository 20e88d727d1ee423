"""The server dies, freezes or runs out of memory: workers wait, then go on."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from chasquimq import Worker
from chasquimq.settings import RetrySettings
from support.waiting import eventually, patience
from support.workers import Workers

LEASE_MS = 1000
pytestmark = pytest.mark.own_server(aof="always")


@pytest.fixture
async def running_worker(url, queue_name):
    """Start workers; what they still run when the test ends is cut short."""
    workers = Workers(queue_name, url)
    yield workers.start
    for running in workers.started:
        await running.cut_short()


async def test_an_outage_longer_than_the_lease_costs_no_finished_job_a_second_run(
    server, trial, running_worker
):
    """What ended meanwhile is acknowledged first, before anything is claimed or started."""
    starts, gate = [], asyncio.Event()

    async def handler(job):
        starts.append(job.data)
        await gate.wait()

    watched = trial.watched(handler)
    running = await running_worker(watched, concurrency=3, claim_min_idle_ms=LEASE_MS)
    await trial.add_bulk([{"name": "n", "data": i} for i in range(3)])
    await eventually(lambda: len(starts) == 3)
    server.kill()
    gate.set()
    await asyncio.sleep(1.3 * LEASE_MS / 1000)
    assert not running.worker.health().is_ok
    await asyncio.to_thread(server.start)

    await trial.drain(within_s=10)
    (await trial.verdict()).demand()
    assert sorted(starts) == [0, 1, 2]
    await eventually(lambda: running.worker.health().is_ok)


async def test_prefetched_jobs_survive_an_outage_and_keep_their_attempt(
    server, trial, running_worker
):
    seen, gate = [], asyncio.Event()

    async def handler(job):
        seen.append((job.data, job.attempt))
        await gate.wait()

    options = {"concurrency": 1, "read_count": 4, "claim_min_idle_ms": LEASE_MS}
    await running_worker(trial.watched(handler), **options)
    await trial.add_bulk([{"name": "n", "data": i} for i in range(4)])
    await eventually(lambda: len(seen) == 1)
    await asyncio.sleep(0.3)
    server.kill()
    await asyncio.sleep(1.5 * LEASE_MS / 1000)
    gate.set()
    await asyncio.to_thread(server.start)
    back_s = time.monotonic()

    await eventually(lambda: len(seen) == 4, within_s=8)
    assert time.monotonic() - back_s < 3 * patience()
    assert seen == [(i, 0) for i in range(4)]
    await trial.drain()
    (await trial.verdict()).demand()


async def test_a_frozen_server_costs_the_leases_and_nothing_new_starts(
    server, queue, running_worker
):
    seen, told, lost = [], [], asyncio.Event()

    async def handler(job):
        seen.append(job.data)
        if job.data == 0:
            await eventually(lambda: job.lease_lost, within_s=5)
            lost.set()
            await eventually(lambda: told)

    def tell(job):
        told.append(job.data)

    running = await running_worker(
        handler, concurrency=1, read_count=3, claim_min_idle_ms=LEASE_MS, on_lease_lost=tell
    )
    await queue.add_bulk([{"name": "n", "data": i} for i in range(3)])
    await eventually(lambda: len(seen) == 1)
    os.kill(server.pid, signal.SIGSTOP)
    frozen_s = time.monotonic()
    try:
        await asyncio.wait_for(lost.wait(), 5)
        lost_s = time.monotonic() - frozen_s
        await asyncio.sleep(0.2)
        assert seen == [0]
        assert not running.worker.health().has_trusted_leases
    finally:
        os.kill(server.pid, signal.SIGCONT)

    assert lost_s <= LEASE_MS / 1000 + 0.1 * patience()
    await eventually(lambda: seen == [0, 1, 2])
    assert told == [0]


async def test_a_server_out_of_memory_still_completes_retries_and_buries(
    queue, raw, running_worker
):
    gate = asyncio.Event()

    async def handler(job):
        await gate.wait()
        if job.name != "ok":
            raise ValueError

    running = await running_worker(
        handler,
        max_attempts=2,
        retry=RetrySettings(initial_backoff_ms=60_000, max_backoff_ms=60_000),
    )
    for name, attempts in (("ok", 2), ("retry", 2), ("bury", 1)):
        jobs = [{"name": name, "data": i, "attempts": attempts} for i in range(10)]
        await queue.add_bulk(jobs)
    await eventually(lambda: running.worker.health().running == 30)
    await raw("CONFIG", "SET", "maxmemory", "1")
    await raw("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    gate.set()

    health = running.worker.health
    await eventually(
        lambda: (health().completed, health().retried, health().buried) == (10, 10, 10)
    )
    assert await raw("XLEN", raw.keys.dlq) == 10
    assert await raw("ZCARD", raw.keys.delayed) == 10
    assert await raw("XLEN", raw.keys.stream) == 0
    await raw("CONFIG", "SET", "maxmemory", "0")


async def test_a_worker_may_start_while_the_server_is_out_of_memory(queue, raw, running_worker):
    async def noop(job):
        return

    first = await running_worker(noop)
    await first.stop()
    await queue.add_bulk([{"name": "n", "data": i} for i in range(10)])
    await raw("CONFIG", "SET", "maxmemory", "1")

    second = await running_worker(noop)

    await eventually(lambda: second.worker.health().completed == 10)
    await raw("CONFIG", "SET", "maxmemory", "0")


async def test_everything_flushed_is_forgotten_and_new_jobs_run(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)

    await running_worker(handler)
    await queue.add("n", "before")
    await eventually(lambda: seen == ["before"])

    await raw("FLUSHALL")
    await queue.add("n", "after")

    await eventually(lambda: seen == ["before", "after"], within_s=2)


async def test_run_until_idle_outlives_a_restart_of_the_server(server, queue, queue_name):
    seen = []

    async def handler(job):
        seen.append(job.data)
        await asyncio.sleep(0.05)

    worker = Worker(queue_name, handler, redis_url=server.url, concurrency=1)
    await queue.add_bulk([{"name": "n", "data": i} for i in range(20)])
    run = asyncio.create_task(worker.run_until_idle())
    await eventually(lambda: len(seen) == 5)

    await asyncio.to_thread(server.restart)

    await asyncio.wait_for(run, 10)
    assert set(seen) == set(range(20))
