"""Time limits: a handler that takes too long is ended, a job that waited too long is not begun."""

from __future__ import annotations

import asyncio
import time

import pytest

from chasquimq import Worker
from chasquimq.errors import SettingsError
from chasquimq.settings import RetrySettings
from support import fault_worker
from support.waiting import eventually, patience

HANG_S = 30
SOON = RetrySettings(initial_backoff_ms=10, max_backoff_ms=20, jitter_ms=0)


async def test_an_async_handler_is_cancelled_at_its_timeout_and_tried_again(
    queue, raw, running_worker
):
    ends = []

    async def hangs(job):
        started_s = time.monotonic()
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ends.append(time.monotonic() - started_s)

    await running_worker(hangs, timeout_ms=100, max_attempts=2, retry=SOON)
    await queue.add("n", None)

    (entry,) = await eventually(raw.dlq)
    assert len(ends) == 2
    assert all(0.1 <= seconds < 0.5 * patience() for seconds in ends)
    assert entry[b"reason"] == b"retries_exhausted"
    assert entry[b"error"] == b"JobTimeout: the handler must end within 100 ms and did not"


async def test_a_job_may_bring_a_time_limit_of_its_own(queue, raw, running_worker):
    async def hangs(job):
        await asyncio.sleep(0.4)

    running = await running_worker(hangs, timeout_ms=50, max_attempts=1)
    await queue.add("patient", None, timeout_ms=5_000)
    await queue.add("hasty", None)

    (entry,) = await eventually(raw.dlq)
    await eventually(lambda: running.worker.health().completed == 1)
    assert entry[b"n"] == b"hasty"


async def test_a_limit_of_a_job_survives_its_retries(queue, raw, running_worker):
    starts = []

    async def hangs(job):
        starts.append(job.attempt)
        await asyncio.sleep(30)

    await running_worker(hangs, max_attempts=3, retry=SOON)
    await queue.add("n", None, timeout_ms=50)

    await eventually(raw.dlq)
    assert starts == [0, 1, 2]


async def test_a_timeout_reaches_only_its_own_job(queue, running_worker):
    done = []

    async def handler(job):
        if job.name == "hang":
            await asyncio.sleep(30)
        await asyncio.sleep(0.001)
        done.append(job.id)

    running = await running_worker(handler, concurrency=4, max_attempts=1)
    for _ in range(20):
        await queue.add("hang", None, timeout_ms=20)
        await queue.add_bulk([{"name": "n", "data": i} for i in range(20)])

    await eventually(lambda: running.worker.health().buried == 20)
    await eventually(lambda: len(done) == 400)


async def test_a_handler_that_waited_for_its_turn_has_its_whole_time(queue, raw, running_worker):
    gate = asyncio.Event()

    async def handler(job):
        if job.name == "first":
            await gate.wait()
        await asyncio.sleep(0.1)

    running = await running_worker(handler, concurrency=1, max_attempts=1)
    await queue.add("first", None)
    await queue.add("second", None, timeout_ms=400)
    await eventually(lambda: running.worker.health().waiting == 1)
    await asyncio.sleep(0.5)
    gate.set()

    await eventually(lambda: running.worker.health().completed == 2)
    assert await raw.dlq() == []


async def test_a_process_is_ended_at_its_timeout_and_another_takes_its_place(
    queue, raw, running_worker
):
    running = await running_worker(
        fault_worker.sleep, pool="process", pool_size=1, timeout_ms=200, max_attempts=1
    )
    started_s = time.monotonic()
    await queue.add("sleep", HANG_S)

    (entry,) = await eventually(raw.dlq)
    assert time.monotonic() - started_s < 2 * patience()
    assert entry[b"error"].startswith(b"JobTimeout")
    await queue.add("sleep", 0)
    await eventually(lambda: running.worker.health().completed == 1)


async def test_a_job_that_waits_for_a_free_process_is_not_timed_yet(queue, raw, running_worker):
    async def never(job):
        await asyncio.sleep(0)

    running = await running_worker(
        {"sleep": fault_worker.sleep, "never": never},
        pool="process", pool_size=1, timeout_ms=600, max_attempts=1,
    )  # fmt: skip
    await queue.add_bulk([{"name": "sleep", "data": 0.25} for _ in range(4)])

    await eventually(lambda: running.worker.health().completed == 4)
    assert await raw.dlq() == []


def test_a_timeout_of_a_def_handler_in_a_thread_is_refused():
    with pytest.raises(SettingsError, match='use pool="process"'):
        Worker("q", fault_worker.sleep, timeout_ms=100)


def test_a_timeout_of_a_mapping_with_a_def_handler_is_refused():
    async def noop(job):
        return

    with pytest.raises(SettingsError, match="timeout_ms"):
        Worker("q", {"a": noop, "b": fault_worker.sleep}, timeout_ms=100)


@pytest.mark.parametrize("is_late", [False, True], ids=["at_once", "after_a_wait"])
async def test_a_thread_works_on_past_the_limit_a_job_brought(queue, raw, running_worker, is_late):
    running = await running_worker(fault_worker.sleep, concurrency=1, max_attempts=1)
    if is_late:
        await queue.add("sleep", 0.4)
    await queue.add("sleep", 0.3, timeout_ms=50)

    await eventually(lambda: running.worker.health().completed == 1 + is_late)
    assert await raw.dlq() == []


async def test_a_job_that_waited_longer_than_it_may_is_buried_unstarted(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)

    await queue.add("n", "stale", expires_ms=50)
    await queue.add("n", "fresh", expires_ms=60_000)
    await asyncio.sleep(0.1)
    await running_worker(handler)

    (entry,) = await eventually(raw.dlq)
    await eventually(lambda: seen)
    assert seen == ["fresh"]
    assert (entry[b"reason"], entry[b"n"]) == (b"expired", b"n")


async def test_a_job_that_started_in_time_never_expires(queue, raw, running_worker):
    starts = []

    async def fails_once(job):
        starts.append(job.attempt)
        if job.attempt == 0:
            raise ValueError

    retry = RetrySettings(initial_backoff_ms=300, jitter_ms=0)
    await running_worker(fails_once, retry=retry)
    await queue.add("n", None, expires_ms=150)

    await eventually(lambda: starts == [0, 1])
    assert await raw.dlq() == []


async def test_expiry_is_counted_from_when_a_delayed_job_fell_due(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)

    await running_worker(handler)
    await queue.add("n", 1, delay_ms=400, expires_ms=300)

    await eventually(lambda: seen)
    assert await raw.dlq() == []
