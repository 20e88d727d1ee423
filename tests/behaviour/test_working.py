"""A worker at work: how much it takes, in which order, and how it starts and ends."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from chasquimq import Worker
from chasquimq.errors import StoreError
from chasquimq.settings import RetrySettings
from support.waiting import eventually


async def noop(job):
    return


async def test_no_more_jobs_run_at_once_than_the_concurrency_and_no_fewer(queue, running_worker):
    running, seen_max, done = 0, 0, []

    async def handler(job):
        nonlocal running, seen_max
        running += 1
        seen_max = max(seen_max, running)
        await asyncio.sleep(0.002)
        running -= 1
        done.append(job.id)

    await running_worker(handler, concurrency=7)
    await queue.add_bulk(numbers(300))

    await eventually(lambda: len(done) == 300)
    assert seen_max == 7


async def test_threads_keep_to_the_concurrency_too(queue, running_worker):
    lock, running, seen_max, done = threading.Lock(), 0, 0, []

    def handler(job):
        nonlocal running, seen_max
        with lock:
            running += 1
            seen_max = max(seen_max, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        done.append(job.id)

    await running_worker(handler, concurrency=4)
    await queue.add_bulk(numbers(60))

    await eventually(lambda: len(done) == 60)
    assert seen_max == 4


async def test_a_slow_worker_leaves_the_rest_to_another(queue, raw, running_worker):
    gate, quick = asyncio.Event(), []

    async def slow(job):
        await gate.wait()

    async def fast(job):
        quick.append(job.data)

    hoarder = await running_worker(slow, concurrency=2)
    await queue.add_bulk(numbers(40))
    await eventually(lambda: hoarder.worker.health().running == 2)

    await running_worker(fast)

    await eventually(lambda: len(quick) == 37)
    assert await held_by(raw, hoarder) == 3
    gate.set()


async def test_a_worker_that_was_fast_does_not_hoard_when_it_becomes_slow(
    queue, raw, running_worker
):
    gate, quick = asyncio.Event(), []

    async def turns_slow(job):
        if job.name == "slow":
            await gate.wait()

    async def fast(job):
        quick.append(job.data)

    hoarder = await running_worker(turns_slow, concurrency=2)
    await queue.add_bulk(numbers(3000))
    await queue.add_bulk(numbers(40, name="slow"))
    await eventually(lambda: hoarder.worker.health().completed == 3000)

    await running_worker(fast)

    await eventually(lambda: len(quick) >= 34)
    assert await held_by(raw, hoarder) <= 2 + 4
    gate.set()


async def test_one_at_a_time_jobs_start_in_the_order_they_were_added(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)
        if job.data % 7 == 0:
            await asyncio.sleep(0.001)

    await running_worker(handler, concurrency=1)
    for at in range(0, 500, 50):
        await queue.add_bulk(numbers(50, start=at))

    await eventually(lambda: len(seen) == 500)
    assert seen == list(range(500))


async def test_order_holds_when_jobs_wait_long_for_their_turn(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)
        await asyncio.sleep(0.12)

    await running_worker(handler, concurrency=1, read_count=64)
    await queue.add_bulk(numbers(8))

    await eventually(lambda: len(seen) == 8)
    assert seen == list(range(8))


async def test_a_second_run_joins_the_first(queue, queue_name, url):
    seen = []

    async def handler(job):
        seen.append(job.id)

    worker = Worker(queue_name, handler, redis_url=url)
    runs = [asyncio.create_task(worker.run()) for _ in range(2)]
    await queue.add("n", None)
    await eventually(lambda: seen)

    await worker.close()

    await asyncio.gather(*runs)
    assert len(seen) == 1


async def test_a_closed_worker_runs_no_more(queue_name, url):
    worker = Worker(queue_name, noop, redis_url=url)

    await worker.close()
    await asyncio.wait_for(worker.run(), 5)

    assert worker.is_closed
    assert not worker.is_running


async def test_close_returns_when_the_run_has_ended_and_may_be_called_again(running_worker):
    running = await running_worker(noop)

    await running.worker.close()
    await running.worker.close()

    assert not running.worker.is_running
    await asyncio.wait_for(running.task, 5)


async def test_leaving_the_context_closes(queue_name, url):
    async with Worker(queue_name, noop, redis_url=url) as worker:
        run = asyncio.create_task(worker.run())
        await eventually(lambda: worker.health().is_consuming)

    await asyncio.wait_for(run, 5)
    assert worker.is_closed


async def test_a_handler_may_close_its_own_worker(queue, queue_name, url):
    done = []

    async def closes(job):
        await worker.close()
        done.append(job.id)

    worker = Worker(queue_name, closes, redis_url=url)
    await queue.add("n", None)

    await asyncio.wait_for(worker.run(), 5)

    assert len(done) == 1
    assert (await queue.counts()).backlog == 0


async def test_a_thread_may_ask_its_own_worker_to_stop(queue, queue_name, url):
    worker = Worker(queue_name, lambda _: worker.request_stop(), redis_url=url)
    await queue.add("n", None)

    await asyncio.wait_for(worker.run(), 5)

    assert (await queue.counts()).backlog == 0


async def test_startup_and_shutdown_hooks_may_close_the_worker(queue_name, url):
    async def closes(worker):
        await worker.close()

    worker = Worker(queue_name, noop, redis_url=url, on_startup=closes, on_shutdown=closes)

    await asyncio.wait_for(worker.run(), 5)


async def test_a_cancelled_run_hands_back_what_it_holds(queue, raw, running_worker):
    started = asyncio.Event()

    async def waits(job):
        started.set()
        await asyncio.sleep(30)

    running = await running_worker(waits, concurrency=1, read_count=5, shutdown_deadline_ms=20_000)
    await queue.add_bulk(numbers(5))
    await started.wait()
    await eventually(lambda: running.worker.health().waiting == 4)

    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running.task, 10)
    running.task = asyncio.create_task(asyncio.sleep(0))

    assert running.worker.consumer_id not in await raw.consumers()
    assert sorted(row[3] for row in await raw.pending()) == [0, 0, 0, 0, 1]
    assert {row[1] for row in await raw.pending()} == {b"returned"}


async def test_run_until_idle_waits_for_retries_and_for_what_is_due_soon(queue, queue_name, url):
    starts = []

    async def fails_once(job):
        starts.append((job.name, job.attempt))
        if job.attempt == 0 and job.name == "flaky":
            raise ValueError

    retry = RetrySettings(initial_backoff_ms=300, jitter_ms=0)
    worker = Worker(queue_name, fails_once, redis_url=url, retry=retry)
    await queue.add("flaky", None)
    await queue.add("later", None, delay_ms=500)
    await queue.add("much_later", None, delay_ms=60_000)

    await asyncio.wait_for(worker.run_until_idle(), 10)

    assert sorted(starts) == [("flaky", 0), ("flaky", 1), ("later", 0)]
    assert (await queue.counts()).delayed == 1


async def test_run_until_idle_of_an_empty_queue_ends_soon(queue_name, url):
    worker = Worker(queue_name, noop, redis_url=url)

    await asyncio.wait_for(worker.run_until_idle(), 10)

    assert worker.is_closed


async def test_a_worker_without_a_server_says_so(queue_name):
    worker = Worker(queue_name, noop, redis_url="redis://127.0.0.1:1")

    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        await asyncio.wait_for(worker.run(), 5)


async def test_health_tells_what_runs_what_waits_and_what_came_of_it(queue, running_worker):
    gate = asyncio.Event()

    async def handler(job):
        if job.name == "wait":
            await gate.wait()
        if job.name == "fail":
            raise ValueError

    retry = RetrySettings(initial_backoff_ms=60_000, max_backoff_ms=60_000)
    running = await running_worker(handler, concurrency=2, retry=retry)
    await queue.add("fail", None)
    await queue.add("bury", None, attempts=1)
    await queue.add_bulk(numbers(3, name="wait"))

    health = running.worker.health
    await eventually(lambda: (health().running, health().waiting) == (2, 1))
    assert health().is_ok
    assert health().is_running
    assert health().retried == 1
    gate.set()
    await eventually(lambda: health().completed == 4)
    assert (health().running, health().waiting, health().unconfirmed) == (0, 0, 0)
    assert health().last_read_age_ms < 2000


async def test_the_totals_of_a_worker_outlive_its_run(queue, queue_name, url):
    worker = Worker(queue_name, noop, redis_url=url)
    await queue.add_bulk(numbers(5))

    await worker.run_until_idle()

    assert worker.health().completed == 5
    assert not worker.health().is_running


async def test_many_workers_share_a_queue_and_run_each_job_once(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)
        if job.data % 10 == 0:
            await asyncio.sleep(0.001)

    for _ in range(4):
        await running_worker(handler, concurrency=10)
    for at in range(0, 4000, 1000):
        await queue.add_bulk(numbers(1000, start=at))

    await eventually(lambda: len(seen) >= 4000)
    assert sorted(seen) == list(range(4000))


async def test_twenty_workers_start_and_leave_without_a_trace(queue_name, url, raw):
    workers = [Worker(queue_name, noop, redis_url=url) for _ in range(20)]
    runs = [asyncio.create_task(worker.run()) for worker in workers]
    await eventually(lambda: all(worker.health().is_consuming for worker in workers))

    await asyncio.gather(*(worker.close() for worker in workers))
    await asyncio.gather(*runs)

    assert await raw.consumers() == []
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("chasqui")]


def numbers(count, *, start=0, name="n"):
    return [{"name": name, "data": start + i} for i in range(count)]


async def held_by(raw, running):
    name = running.worker.consumer_id.encode()
    return sum(row[1] == name for row in await raw.pending())
