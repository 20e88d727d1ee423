"""Stopping is a tide: what runs may finish, what has not started goes back at once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from chasquimq import Worker
from support import fault_worker
from support.faultproxy import FaultProxy
from support.waiting import eventually, patience
from support.workers import RunningWorker

LEASE_MS = 30_000
HANG_S = 30


def at_once_s() -> float:
    """What a stop may take beyond its deadline."""
    return 1.3 * patience()


async def seconds_to_close(worker) -> float:
    asked_s = time.monotonic()
    await worker.close()
    return time.monotonic() - asked_s


async def test_what_has_not_started_goes_to_another_worker_at_once(queue, raw, running_worker):
    gate, seen = asyncio.Event(), []

    async def waits(job):
        await gate.wait()

    async def takes(job):
        seen.append((job.data, job.attempt, job.redelivered))

    leaver = await running_worker(waits, concurrency=1, read_count=16)
    await queue.add_bulk(numbers(16))
    await eventually(lambda: leaver.worker.health().waiting == 15)
    await running_worker(takes)

    leaver.worker.request_stop()

    await eventually(lambda: len(seen) == 15, within_s=LEASE_MS / 3_000)
    assert sorted(seen) == [(i, 0, False) for i in range(1, 16)]
    gate.set()
    await asyncio.wait_for(leaver.task, at_once_s())
    assert leaver.worker.consumer_id not in await raw.consumers()


async def test_what_runs_may_finish_within_the_deadline(queue, raw, running_worker):
    done, started = [], asyncio.Event()

    async def slow(job):
        started.set()
        await asyncio.sleep(0.5)
        done.append(job.data)

    leaver = await running_worker(slow, concurrency=3, shutdown_deadline_ms=5_000)
    await queue.add_bulk(numbers(3))
    await started.wait()
    await eventually(lambda: leaver.worker.health().running == 3)

    await asyncio.wait_for(leaver.worker.close(), 4.5)

    assert sorted(done) == [0, 1, 2]
    assert await raw.pending() == []
    assert await raw.consumers() == []


async def test_what_still_runs_at_the_deadline_is_cancelled_and_goes_back_charged(
    queue, raw, running_worker
):
    cancelled = []

    async def slow(job):
        try:
            await asyncio.sleep(HANG_S)
        except asyncio.CancelledError:
            cancelled.append(job.data)
            raise

    leaver = await running_worker(slow, shutdown_deadline_ms=300)
    await queue.add_bulk(numbers(3))
    await eventually(lambda: leaver.worker.health().running == 3)
    asked_s = time.monotonic()

    await leaver.worker.close()

    assert 0.3 <= time.monotonic() - asked_s < at_once_s()
    assert sorted(cancelled) == [0, 1, 2]
    assert [(row[1], row[3]) for row in await raw.pending()] == [(b"returned", 1)] * 3
    assert await raw.consumers() == ["returned"]


async def test_a_second_request_gives_back_at_once(queue, raw, running_worker):
    async def slow(job):
        await asyncio.sleep(HANG_S)

    leaver = await running_worker(slow)
    await queue.add_bulk(numbers(3))
    await eventually(lambda: leaver.worker.health().running == 3)
    leaver.worker.request_stop()
    await asyncio.sleep(0.1)

    leaver.worker.request_stop()

    await asyncio.wait_for(leaver.task, at_once_s())
    assert {row[1] for row in await raw.pending()} == {b"returned"}


async def test_a_handler_that_ignores_its_cancel_keeps_its_lease_and_holds_nobody_up(
    queue, raw, running_worker
):
    gate = asyncio.Event()

    async def stubborn(job):
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    leaver = await running_worker(stubborn, shutdown_deadline_ms=200)
    await queue.add("n", None)
    await eventually(lambda: leaver.worker.health().running == 1)

    took_s = await seconds_to_close(leaver.worker)
    gate.set()

    assert took_s < at_once_s()
    assert [row[1] for row in await raw.pending()] == [leaver.worker.consumer_id.encode()]


async def test_a_handler_that_fails_while_it_is_cancelled_is_retried_as_a_failure(
    queue, raw, running_worker
):
    async def clumsy(job):
        try:
            await asyncio.sleep(HANG_S)
        finally:
            raise ValueError("in the cleanup")

    leaver = await running_worker(clumsy, shutdown_deadline_ms=100)
    await queue.add("n", None)
    await eventually(lambda: leaver.worker.health().running == 1)

    await leaver.worker.close()

    assert await raw.pending() == []
    assert (await queue.counts()).delayed == 1


async def test_a_thread_that_still_runs_keeps_its_lease(queue, raw, running_worker):
    gate = threading.Event()
    leaver = await running_worker(lambda _: gate.wait(HANG_S), shutdown_deadline_ms=100)
    await queue.add("n", None)
    await eventually(lambda: leaver.worker.health().running == 1)

    took_s = await seconds_to_close(leaver.worker)
    gate.set()

    assert took_s < at_once_s()
    assert [row[1] for row in await raw.pending()] == [leaver.worker.consumer_id.encode()]


async def test_a_process_that_still_runs_is_ended_and_its_job_goes_back(queue, raw, running_worker):
    leaver = await running_worker(
        fault_worker.sleep, pool="process", pool_size=1, shutdown_deadline_ms=100
    )
    await queue.add("sleep", HANG_S)
    await eventually(lambda: leaver.worker.health().running == 1)

    asked_s = time.monotonic()
    await leaver.worker.close()

    assert time.monotonic() - asked_s < at_once_s()
    assert [(row[1], row[3]) for row in await raw.pending()] == [(b"returned", 1)]


async def test_a_worker_that_stops_reads_nothing_more(queue, raw, running_worker):
    gate, seen = asyncio.Event(), []

    async def handler(job):
        seen.append(job.data)
        await gate.wait()

    leaver = await running_worker(handler)
    await queue.add("n", "first")
    await eventually(lambda: seen)

    leaver.worker.request_stop()
    await eventually(lambda: not leaver.worker.health().is_consuming)
    await asyncio.sleep(0.1)
    await queue.add_bulk(numbers(5))
    gate.set()
    await leaver.task

    assert seen == ["first"]
    assert (await queue.counts()).ready == 5


async def test_jobs_that_come_while_a_worker_leaves_are_left_or_run_but_never_kept(
    queue, queue_name, raw, running_worker
):
    done = []

    async def handler(job):
        done.append(job.data)

    async def adds():
        for i in range(2000):
            await queue.add("n", i)

    adding = asyncio.create_task(adds())
    while not adding.done():
        leaver = await running_worker(handler)
        await asyncio.sleep(0.02)
        await leaver.stop()
        assert leaver.worker.consumer_id not in await raw.consumers()
    await adding

    await running_worker(handler)
    await eventually(lambda: len(done) >= 2000, within_s=5)
    assert sorted(done) == list(range(2000))


@pytest.mark.parametrize("deadline_ms", [0, 50])
async def test_an_idle_worker_stops_at_once_whatever_its_deadline(raw, running_worker, deadline_ms):
    async def noop(job):
        return

    leaver = await running_worker(noop, shutdown_deadline_ms=deadline_ms)

    asked_s = time.monotonic()
    await leaver.worker.close()

    assert time.monotonic() - asked_s < at_once_s()
    assert await raw.consumers() == []


async def test_a_worker_that_ran_nothing_does_not_wait_for_a_dial_that_hangs(url, queue_name):
    async with FaultProxy(url) as proxy:
        worker = Worker(queue_name, waits_long, redis_url=proxy.url, shutdown_deadline_ms=20_000)
        leaver = RunningWorker(worker)
        await leaver.until_consuming()
        proxy.freeze()
        proxy.cut()
        await eventually(lambda: not leaver.worker.health().is_consuming)

        assert await seconds_to_close(leaver.worker) < at_once_s()


async def waits_long(job):
    await asyncio.sleep(HANG_S)


async def cancel_twice(running) -> None:
    """A caller that has no patience, such as `asyncio.wait_for` around a task it cancelled."""
    running.task.cancel()
    await asyncio.sleep(0)
    running.task.cancel()


async def ask_and_cancel(running) -> None:
    """A caller whose own time is over long before the deadline."""
    running.worker.request_stop()
    await asyncio.sleep(0.1)
    running.task.cancel()


async def cancel_all_others(running) -> None:
    """Code that cancels every task of the loop, in the middle of the stop."""
    running.task.cancel()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("end", [cancel_twice, ask_and_cancel, cancel_all_others])
async def test_a_run_that_is_cancelled_while_it_stops_leaves_nothing_behind(
    queue, queue_name, url, running_worker, end
):
    """Loops that went on would read jobs that nobody runs, and a thread would renew them for ever."""
    threads = set(threading.enumerate())
    leaver = RunningWorker(
        Worker(
            queue_name, waits_long, redis_url=url,
            claim_min_idle_ms=600, concurrency=1, read_count=8,
        )
    )  # fmt: skip
    await leaver.until_consuming()
    await queue.add_bulk(numbers(8))
    await eventually(lambda: leaver.worker.health().waiting == 7)
    asked_s = time.monotonic()

    await end(leaver)
    await asyncio.wait([leaver.task])

    assert time.monotonic() - asked_s < at_once_s()
    assert leaver.task.cancelled()
    await eventually(lambda: leases_of(threads) == [], what="the end of the lease thread")
    left = {task.get_name() for task in asyncio.all_tasks() if not task.done()}
    assert [name for name in left if name.startswith("chasqui-")] == []
    done = []
    await running_worker(lambda job: done.append(job.data), claim_min_idle_ms=600)
    await eventually(lambda: sorted(done) == list(range(8)), what="every job elsewhere")


def leases_of(others) -> list[threading.Thread]:
    found = set(threading.enumerate()) - others
    return [one for one in found if one.name == "chasqui-lease"]


async def test_a_run_that_is_cancelled_while_it_stops_still_calls_its_last_hook(
    queue, queue_name, url
):
    told = []
    leaver = RunningWorker(Worker(queue_name, waits_long, redis_url=url, on_shutdown=told.append))
    await leaver.until_consuming()
    await queue.add("n", 1)
    await eventually(lambda: leaver.worker.health().running == 1)

    await cancel_twice(leaver)
    await asyncio.wait([leaver.task])

    assert leaver.task.cancelled()
    assert told == [leaver.worker]


async def test_a_run_that_is_cancelled_while_it_stops_is_known_to_have_ended(
    queue, queue_name, url, caplog
):
    """Who looks at a worker, as a probe does, must not take it for one that runs."""
    caplog.set_level(logging.INFO, logger="chasquimq")
    leaver = RunningWorker(Worker(queue_name, waits_long, redis_url=url))
    await leaver.until_consuming()
    await queue.add("n", 1)
    await eventually(lambda: leaver.worker.health().running == 1)

    await cancel_twice(leaver)
    await asyncio.wait([leaver.task])

    health = leaver.worker.health()
    assert (leaver.worker.is_running, health.is_running, health.is_consuming) == (False,) * 3
    assert f"of queue {queue_name} ended after" in caplog.text


def numbers(count):
    return [{"name": "n", "data": i} for i in range(count)]
