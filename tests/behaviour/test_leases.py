"""A lease is kept for as long as its job is held: a long handler runs once."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from chasquimq.telemetry.memory import InMemorySink
from support.checker import Evidence, check
from support.journal import START, read_journals
from support.processes import WorkerFleet
from support.waiting import eventually

LEASE_MS = 1000
LONG_S = 2.5


def spins(seconds):
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


async def sleeps(job):
    await asyncio.sleep(LONG_S)


def blocks(job):
    time.sleep(LONG_S)


def spins_in_thread(job):
    spins(LONG_S)


@pytest.mark.parametrize("handler", [sleeps, blocks, spins_in_thread], ids=lambda h: h.__name__)
async def test_a_handler_longer_than_its_lease_starts_once(queue, running_worker, handler):
    starts, idle_saw = [], []

    async def counted(job):
        starts.append(job.id)
        await sleeps(job)

    def counted_in_thread(job):
        starts.append(job.id)
        handler(job)

    async def idle(job):
        idle_saw.append(job.id)

    options = {"claim_min_idle_ms": LEASE_MS, "concurrency": 2, "read_count": 64}
    busy = await running_worker(counted if handler is sleeps else counted_in_thread, **options)
    await queue.add_bulk([{"name": "n", "data": i} for i in range(2)])
    await eventually(lambda: len(starts) == 2)

    await running_worker(idle, claim_min_idle_ms=LEASE_MS)

    await eventually(lambda: busy.worker.health().completed == 2)
    assert len(starts) == 2
    assert idle_saw == []
    assert busy.worker.health().leases_lost == 0
    assert busy.worker.health().stale_outcomes == 0


async def test_a_worker_alone_lets_no_lease_run_out(queue, running_worker):
    sink = InMemorySink()
    alone = await running_worker(
        sleeps, claim_min_idle_ms=LEASE_MS, concurrency=2, read_count=64, metrics=sink
    )
    await queue.add_bulk([{"name": "n", "data": i} for i in range(2)])

    await eventually(lambda: alone.worker.health().completed == 2)
    # It looks for such leases itself, and would find its own.
    assert sink.entries_reclaimed() == 0


@pytest.mark.parametrize("handler", ["spin", "spin_in_thread"])
async def test_a_long_handler_in_a_process_of_its_own_starts_once(
    url, queue, queue_name, tmp_path, handler
):
    """`spin` never lets the event loop run, so only the lease thread can renew."""
    fleet = WorkerFleet(url, queue_name, tmp_path)
    options = {"claim_min_idle_ms": LEASE_MS}
    try:
        other = await fleet.start("wait", **options)
        fleet.freeze(other)
        # What it had asked for before it froze is answered without a job by then.
        await asyncio.sleep(0.7)
        await fleet.start(handler, concurrency=1, read_count=64, **options)
        jobs = await queue.add_bulk([{"name": "n", "data": LONG_S}, {"name": "n", "data": 0.2}])
        await eventually(lambda: [one for one in read_journals(tmp_path) if one.event == START])
        fleet.thaw(other)
        await eventually(lambda: is_empty(queue), within_s=20)
    finally:
        fleet.close()

    verdict = check(Evidence(lines=read_journals(tmp_path)))
    verdict.demand()
    assert (verdict.figures["starts"], verdict.figures["completions"]) == (len(jobs), len(jobs))


async def test_prefetched_jobs_are_kept_as_long_as_running_ones(queue, running_worker):
    seen, idle_saw = [], []

    async def slow(job):
        seen.append((job.data, job.attempt, job.redelivered))
        await asyncio.sleep(0.1 if job.data else 2 * LEASE_MS / 1000)

    async def idle(job):
        idle_saw.append(job.data)

    options = {"claim_min_idle_ms": LEASE_MS}
    # It holds all that it may, so that it cannot take back what it let go: only the idle one can.
    busy = await running_worker(slow, concurrency=1, read_count=5, **options)
    await queue.add_bulk([{"name": "n", "data": i} for i in range(5)])
    await eventually(lambda: busy.worker.health().waiting == 4)
    await running_worker(idle, **options)

    await eventually(lambda: busy.worker.health().completed == 5)
    assert seen == [(i, 0, False) for i in range(5)]
    assert idle_saw == []


async def test_a_job_whose_lease_was_taken_is_told_and_its_failure_changes_nothing(
    queue, raw, running_worker
):
    told, seen = [], []

    async def handler(job):
        await eventually(lambda: job.lease_lost)
        seen.append(job.lease_lost)
        raise ValueError("a zombie's failure")

    running = await running_worker(
        handler, claim_min_idle_ms=LEASE_MS, max_attempts=1, on_lease_lost=told.append
    )
    job = await queue.add("n", None)
    await eventually(lambda: running.worker.health().running == 1)

    ((entry_id, *_),) = await raw.pending()
    await raw("XCLAIM", raw.keys.stream, "default", "thief", 0, entry_id)

    await eventually(lambda: seen == [True])
    await eventually(lambda: running.worker.health().stale_outcomes == 1)
    assert [one.id for one in told] == [job.id]
    assert running.worker.health().leases_lost == 1
    assert [row[1] for row in await raw.pending()] == [b"thief"]
    assert await raw.dlq() == []
    assert (await queue.counts()).delayed == 0


def waits_for_loss(job):
    """Runs in a process of its own."""
    until_s = time.monotonic() + 20
    while not job.lease_lost and time.monotonic() < until_s:
        time.sleep(0.01)
    return job.lease_lost


async def test_a_handler_in_a_child_process_is_told_that_its_lease_was_taken(
    queue, raw, running_worker
):
    running = await running_worker(
        waits_for_loss, claim_min_idle_ms=LEASE_MS, pool="process", pool_size=1, store_results=True
    )
    job = await queue.add("n", None)
    await eventually(lambda: running.worker.health().running == 1)
    ((entry_id, *_),) = await raw.pending()

    await raw("XCLAIM", raw.keys.stream, "default", "thief", 0, entry_id)

    # Who lost a lease may still complete the job.
    assert await queue.wait_for_result(job.id, timeout=15) is True


async def test_a_zombie_may_still_complete_its_job(queue, raw, running_worker):
    gate = asyncio.Event()

    async def handler(job):
        await gate.wait()

    running = await running_worker(handler, claim_min_idle_ms=LEASE_MS)
    await queue.add("n", None)
    await eventually(lambda: running.worker.health().running == 1)
    ((entry_id, *_),) = await raw.pending()
    await raw("XCLAIM", raw.keys.stream, "default", "thief", 0, entry_id)

    gate.set()

    await eventually(lambda: running.worker.health().completed == 1)
    assert await raw.pending() == []


async def test_a_prefetched_job_that_was_taken_never_starts_here(queue, raw, running_worker):
    gate, seen, told = asyncio.Event(), [], []

    async def handler(job):
        seen.append(job.data)
        await gate.wait()

    running = await running_worker(
        handler, concurrency=1, read_count=2, claim_min_idle_ms=LEASE_MS, on_lease_lost=told.append
    )
    await queue.add_bulk([{"name": "n", "data": i} for i in range(2)])
    await eventually(lambda: is_uncharged(raw))
    prefetched = max(row[0] for row in await raw.pending())
    await raw("XCLAIM", raw.keys.stream, "default", "thief", 0, prefetched)

    gate.set()

    await eventually(lambda: running.worker.health().completed == 1)
    await eventually(lambda: running.worker.health().waiting == 0)
    assert seen == [0]
    assert [row[1] for row in await raw.pending()] == [b"thief"]


async def test_fast_jobs_are_never_told_that_their_lease_was_lost(queue, running_worker):
    told = []

    async def noop(job):
        return

    running = await running_worker(noop, claim_min_idle_ms=LEASE_MS, on_lease_lost=told.append)
    for _ in range(30):
        await queue.add_bulk([{"name": "n", "data": i} for i in range(1000)])

    await eventually(lambda: running.worker.health().completed == 30_000, within_s=20)
    assert running.worker.health().leases_lost == 0
    assert told == []


async def test_an_entry_read_twice_by_one_worker_starts_once(queue, raw, running_worker):
    starts, gate = [], asyncio.Event()

    async def handler(job):
        starts.append(job.id)
        await gate.wait()

    running = await running_worker(handler, claim_min_idle_ms=LEASE_MS)
    await queue.add("n", None)
    await eventually(lambda: starts)
    ((entry_id, *_),) = await raw.pending()

    name = running.worker.consumer_id
    await raw("XCLAIM", raw.keys.stream, "default", name, 0, entry_id, "IDLE", 3_600_000, "JUSTID")

    await eventually(lambda: is_fresh(raw), what="a second delivery or a renewal")
    await asyncio.sleep(0.2)
    assert len(starts) == 1
    assert [row[3] for row in await raw.pending()] == [1]
    gate.set()
    await eventually(lambda: running.worker.health().completed == 1)


async def is_uncharged(raw):
    return sorted(row[3] for row in await raw.pending()) == [0, 1]


async def is_fresh(raw):
    return all(row[2] < LEASE_MS for row in await raw.pending())


async def is_empty(queue):
    return (await queue.counts()).backlog == 0


class Paused:
    """Stops whoever decided on trust right before it is passed on, until another has been heard."""

    def __init__(self, lease, decision, meanwhile):
        self._decision = decision
        self._meanwhile = meanwhile
        self._pass_on = lease._alarm.trusted
        self._has_other = threading.Event()
        self.is_met = False
        lease._alarm.trusted = self

    def __call__(self, is_trusted):
        if is_trusted is self._decision and not self.is_met:
            self.is_met = True
            self._meanwhile()
            self._has_other.wait(0.5)  # where one has to wait for the other, nobody comes
            self._pass_on(is_trusted)
        else:
            self._pass_on(is_trusted)
            self._has_other.set()


async def test_a_renewal_between_a_lapse_and_its_hold_lets_runners_go_on(queue, running_worker):
    done = []

    async def handler(job):
        done.append(job.data)

    running = await running_worker(handler)
    pipeline = running.worker._session.pipeline
    renewal = threading.Thread(target=pipeline.lease._beat)
    paused = Paused(pipeline.lease, False, renewal.start)
    # As after an outage: the event loop notices it at its next beat.
    pipeline.lease._renewed_s -= 60
    await eventually(lambda: paused.is_met)
    await asyncio.to_thread(renewal.join)
    # The renewal came last, so it is the last word; not only the next one, ten seconds later.
    assert pipeline.lease.is_trusted

    await queue.add("n", 1)

    await eventually(lambda: done == [1], what="the job's start")
    assert running.worker.health().is_ok


async def test_a_lapse_between_a_renewal_and_its_word_holds_runners_back(running_worker):
    async def handler(job):
        raise AssertionError("nothing was added")

    running = await running_worker(handler)
    pipeline = running.worker._session.pipeline
    lease, loop = pipeline.lease, asyncio.get_running_loop()
    lease.is_trusted = False
    pipeline.runners.hold_back("leases")

    def lapses():
        lease._renewed_s -= 60
        loop.call_soon_threadsafe(lease.check)

    paused = Paused(lease, True, lapses)
    await asyncio.to_thread(lease._beat)

    await eventually(lambda: paused.is_met and not lease.is_trusted)
    await asyncio.sleep(0)  # what was posted before now has run
    assert pipeline.runners._held_back_by == {"leases"}
    await asyncio.to_thread(lease._beat)
    await eventually(lambda: not pipeline.runners._held_back_by)


async def test_the_thread_that_renews_leases_survives_what_its_listeners_raise(
    queue, running_worker
):
    beats = []

    async def handler(job):
        pass

    running = await running_worker(handler, claim_min_idle_ms=300)
    lease = running.worker._session.pipeline.lease

    def raises(*_):
        beats.append(lease.beat_age_ms)
        raise ValueError("a bug")

    pass_on, lease._alarm.trusted = lease._alarm.trusted, raises
    lease.is_trusted = False
    await eventually(lambda: beats)
    lease._alarm.trusted = pass_on
    lease.is_trusted = False

    await eventually(lambda: lease.is_trusted, what="a renewal after the bug")
