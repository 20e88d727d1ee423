"""Hooks: told at start and end, and after each outcome that is certain."""

from __future__ import annotations

import asyncio
import logging

import pytest

from chasquimq import UnrecoverableError, Worker, current_job
from chasquimq.errors import RetryLater
from chasquimq.settings import RetrySettings
from chasquimq.worker import hooks
from chasquimq.worker.hooks import RUNNING_MAX, WAITING_MAX
from support.waiting import eventually

SOON = RetrySettings(initial_backoff_ms=10, max_backoff_ms=20, jitter_ms=0)


async def noop(job):
    return


async def fails(job):
    raise ValueError


class Told:
    """Notes every call of every hook, in order."""

    def __init__(self) -> None:
        self.calls = []

    def hooks(self):
        names = ("on_completed", "on_failed", "on_dead")
        return {name: self._note(name) for name in names}

    def _note(self, name):
        return lambda job: self.calls.append((name, job.data, job.attempt))


async def test_a_completed_job_is_told_after_it_left_the_queue(queue, running_worker):
    told = []

    async def counts(job):
        told.append((job.data, (await queue.counts()).backlog))

    await running_worker(noop, on_completed=counts)
    await queue.add("n", 7)

    await eventually(lambda: told)
    assert told == [(7, 0)]


async def test_every_failed_attempt_is_told_and_the_last_one_is_told_dead(queue, running_worker):
    told = Told()
    await running_worker(fails, retry=SOON, max_attempts=3, **told.hooks())

    await queue.add("n", "x")

    await eventually(lambda: len(told.calls) == 4)
    assert told.calls == [
        ("on_failed", "x", 0),
        ("on_failed", "x", 1),
        ("on_failed", "x", 2),
        ("on_dead", "x", 2),
    ]


async def test_an_unrecoverable_job_is_told_failed_and_dead(queue, running_worker):
    told = Told()

    async def gives_up(job):
        raise UnrecoverableError("no")

    await running_worker(gives_up, **told.hooks())
    await queue.add("n", "x")

    await eventually(lambda: len(told.calls) == 2)
    assert told.calls == [("on_failed", "x", 0), ("on_dead", "x", 0)]


async def test_a_job_that_asks_for_later_has_not_failed(queue, running_worker):
    told = Told()

    async def snoozes_once(job):
        if len(seen) == 0:
            seen.append(job.id)
            raise RetryLater(10)

    seen = []
    running = await running_worker(snoozes_once, **told.hooks())
    await queue.add("n", "x")

    await eventually(lambda: told.calls)
    assert told.calls == [("on_completed", "x", 0)]
    assert running.worker.health().failed == 0


async def test_a_hook_that_raises_is_logged_and_harms_no_job(queue, running_worker, caplog):
    done = []

    def raises(job):
        done.append(job.data)
        raise ValueError("a bad hook")

    running = await running_worker(noop, on_completed=raises)
    with caplog.at_level(logging.ERROR, "chasquimq"):
        await queue.add_bulk([{"name": "n", "data": i} for i in range(3)])
        await eventually(lambda: len(done) == 3)

    subject = f"of worker {running.worker.consumer_id} of queue {queue.name} raised"
    await eventually(lambda: subject in caplog.text)


async def test_hooks_share_the_state_and_know_their_job(queue, running_worker):
    told = []

    async def opens(worker):
        worker.state["told"] = told

    async def notes(job):
        await asyncio.sleep(0)
        job.state["told"].append((job.id, current_job() is job))

    await running_worker(noop, on_startup=opens, on_completed=notes)
    job = await queue.add("n", None)

    await eventually(lambda: told)
    assert told == [(job.id, True)]


async def test_a_worker_whose_startup_raises_reads_nothing(queue, queue_name, url, raw):
    told = []

    async def fails_to_start(worker):
        raise ValueError("no database")

    worker = Worker(
        queue_name, noop, redis_url=url, on_startup=fails_to_start, on_shutdown=told.append
    )
    await queue.add("n", None)

    with pytest.raises(ValueError, match="no database"):
        await worker.run()

    assert (await queue.counts()).ready == 1
    assert await raw.consumers() == []
    assert told == []


async def test_no_job_starts_before_startup_has_ended(queue, running_worker):
    order = []

    async def opens(worker):
        await asyncio.sleep(0.2)
        order.append("startup")

    async def handler(job):
        order.append("job")

    await queue.add("n", None)
    await running_worker(handler, on_startup=opens)

    await eventually(lambda: len(order) == 2)
    assert order == ["startup", "job"]


async def test_shutdown_comes_after_the_last_job_and_the_last_hook(queue, queue_name, url):
    order = []

    async def handler(job):
        await asyncio.sleep(0.05)
        order.append("job")

    async def slow_hook(job):
        await asyncio.sleep(0.1)
        order.append("hook")

    worker = Worker(
        queue_name, handler, redis_url=url,
        on_completed=slow_hook, on_shutdown=lambda _: order.append("shutdown"),
    )  # fmt: skip
    await queue.add("n", None)

    await worker.run_until_idle()

    assert order == ["job", "hook", "shutdown"]


async def test_a_hook_that_never_ends_does_not_hold_the_worker_up(queue, queue_name, url):
    hangs = asyncio.Event()

    async def hook(job):
        await hangs.wait()

    worker = Worker(queue_name, noop, redis_url=url, on_completed=hook, shutdown_deadline_ms=300)
    await queue.add("n", None)

    await asyncio.wait_for(worker.run_until_idle(), 5)

    assert worker.health().completed == 1
    hangs.set()


async def test_a_hook_may_close_its_worker(queue, queue_name, url):
    async def closes(job):
        await worker.close()

    worker = Worker(queue_name, noop, redis_url=url, on_completed=closes)
    await queue.add("n", None)

    await asyncio.wait_for(worker.run(), 5)


class Gated:
    """A hook that waits until it is let go, and knows how many wait with it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = self.running_max = self.ended = 0

    async def hook(self, job):
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        await self.gate.wait()
        self.running -= 1
        self.ended += 1


async def test_hooks_that_wait_take_turns_and_all_are_called(queue, running_worker, caplog):
    gated, count = Gated(), RUNNING_MAX + 500
    running = await running_worker(noop, on_completed=gated.hook)

    await queue.add_bulk([{"name": "n", "data": at} for at in range(count)])
    await eventually(lambda: running.worker.health().completed == count)
    await eventually(lambda: gated.running == RUNNING_MAX)
    gated.gate.set()
    await running.stop()

    assert (gated.ended, gated.running_max) == (count, RUNNING_MAX)
    assert "left out" not in caplog.text


async def test_hooks_that_never_end_are_left_out_beyond_a_limit_and_told_once(
    queue, running_worker, caplog
):
    gated, count = Gated(), RUNNING_MAX + WAITING_MAX + 300
    running = await running_worker(noop, on_completed=gated.hook, events="off")

    await queue.add_bulk([{"name": "n", "data": at} for at in range(count)])
    await eventually(lambda: running.worker.health().completed == count, within_s=30)
    gated.gate.set()
    await running.stop()

    assert gated.ended == RUNNING_MAX + WAITING_MAX
    assert (
        caplog.text.count(f"of queue {queue.name} are slower than jobs, and calls are left out")
        == 1
    )


async def test_hooks_that_wait_with_much_data_are_left_out_beyond_a_limit_and_told_once(
    queue, running_worker, caplog, monkeypatch
):
    monkeypatch.setattr(hooks, "RUNNING_MAX", 5)
    monkeypatch.setattr(hooks, "WAITING_BYTES_MAX", 1024 * 1024)
    gated = Gated()
    running = await running_worker(noop, on_completed=gated.hook)

    await queue.add_bulk([{"name": "n", "data": b"x" * 64 * 1024} for _ in range(40)])
    await eventually(lambda: running.worker.health().completed == 40)
    gated.gate.set()
    await running.stop()

    # A job that waits is kept with its payload and its envelope, which holds the payload again.
    assert gated.ended == 5 + 8
    assert (
        caplog.text.count(f"of queue {queue.name} are slower than jobs, and calls are left out")
        == 1
    )


async def test_hooks_that_had_to_wait_leave_room_for_others(queue, running_worker, monkeypatch):
    monkeypatch.setattr(hooks, "RUNNING_MAX", 1)
    monkeypatch.setattr(hooks, "WAITING_BYTES_MAX", 256 * 1024)
    gated = Gated()
    running = await running_worker(noop, on_completed=gated.hook)

    for count in (3, 6):
        gated.gate.clear()
        await queue.add_bulk([{"name": "n", "data": b"x" * 64 * 1024} for _ in range(3)])
        await eventually(lambda count=count: running.worker.health().completed == count)
        gated.gate.set()
        await eventually(lambda count=count: gated.ended == count)
