"""The history: a row for every finished attempt, written after the fact, each one once."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from chasquimq import RetryLater, UnrecoverableError, Worker
from chasquimq.errors import SettingsError
from chasquimq.wire.history import decode_history, outcome_label
from support.faultproxy import FaultProxy
from support.waiting import eventually

MIB = 1024 * 1024
IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
CAP_BYTES, CAP_JOBS, CAP_BATCH = (32 * MIB, 2_000_000, 20_000) if IS_BIG else (MIB, 60_000, 3_000)


@pytest.fixture
def history(raw):
    """The entries of the test's queue, decoded."""

    async def read():
        rows = await raw("XRANGE", raw.keys.history, "-", "+")
        return [decode_history(fields) for _, fields in rows]

    return read


@pytest.fixture
def attempts(history):
    """All rows, with their outcome in a word."""

    async def read():
        return [(outcome_label(row.outcome), row) for e in await history() for row in e.rows()]

    return read


async def work(url, queue_name, handler, **options):
    """Run a worker until the queue is empty; it stops cleanly."""
    worker = Worker(queue_name, handler, redis_url=url, **options)
    await worker.run_until_idle(delayed_within_ms=20_000)


def ended_of(worker) -> int:
    """How many jobs this worker has ended, those included of which nobody knows who did it."""
    return worker.health().completed + worker.health().unproven_outcomes


async def handler(job):
    if job.name == "slow":
        await asyncio.sleep(0.05)
    if job.name == "flaky" and job.run_number == 1:
        raise ValueError("try again")
    if job.name == "dead":
        raise UnrecoverableError("never")
    if job.name == "sleepy" and not job.data.get("slept"):
        raise RetryLater(10_000_000)


async def test_a_completed_job_leaves_a_row_in_server_time(queue, url, queue_name, attempts, raw):
    job = await queue.add("slow", 1)
    await work(url, queue_name, handler)

    ((outcome, row),) = await attempts()
    seconds, micros = await raw("TIME")
    age_us = int(seconds) * 1_000_000 + int(micros) - row.started_at_us
    assert (outcome, row.job_id, row.name, row.attempt) == ("completed", job.id, "slow", 1)
    assert 50_000 <= row.duration_us <= 2_000_000
    assert 50_000 <= age_us <= 10_000_000
    assert row.enqueued_at_ms == job.created_at_ms
    assert 0 <= row.started_at_us // 1_000 - row.ready_at_ms <= 5_000
    assert (row.deliveries, row.backoff_ms, row.error) == (1, 0, None)


async def test_a_failed_attempt_and_the_one_that_succeeds_are_two_rows(
    queue, url, queue_name, attempts
):
    await queue.add("flaky", 1)
    await work(url, queue_name, handler)

    (first, failed), (second, completed) = await attempts()
    assert (first, failed.attempt, second, completed.attempt) == ("retried", 1, "completed", 2)
    assert (failed.error_type, failed.error) == ("ValueError", "try again")
    assert failed.backoff_ms > 0
    assert completed.due_ms == pytest.approx(
        failed.started_at_us // 1_000 + failed.backoff_ms, abs=2_000
    )


async def test_a_dead_job_keeps_its_last_error(queue, url, queue_name, attempts):
    await queue.add("dead", 1)
    await work(url, queue_name, handler)

    ((outcome, row),) = await attempts()
    assert (outcome, row.error_type, row.error) == ("dead", "UnrecoverableError", "never")
    assert row.fingerprint


async def test_a_snooze_is_told_apart_from_a_failure(queue, running_worker, attempts):
    running = await running_worker(handler)
    await queue.add("sleepy", {})
    await eventually(lambda: running.worker.health().retried == 1)
    await running.stop()

    ((outcome, row),) = await attempts()
    assert (outcome, row.backoff_ms) == ("snoozed", 10_000_000)


async def test_a_job_that_expired_was_rejected_and_never_started(queue, url, queue_name, attempts):
    await queue.add("late", 1, expires_ms=1)
    await asyncio.sleep(0.05)
    await work(url, queue_name, handler)

    ((outcome, row),) = await attempts()
    assert (outcome, row.attempt, row.started_at_us) == ("rejected", 0, None)
    assert row.error_type == "expired"


async def test_an_entry_that_cannot_be_read_is_rejected_with_its_reason(
    url, queue_name, attempts, raw
):
    await raw("XADD", raw.keys.stream, "*", "d", b"\xc1")
    await work(url, queue_name, handler)

    ((outcome, row),) = await attempts()
    assert (outcome, row.job_id, row.error_type) == ("rejected", "", "decode_failed")


async def test_an_outcome_that_came_too_late_is_stale(queue, running_worker, attempts, raw):
    async def steal(job):
        ((entry_id, *_),) = await raw.pending()
        await raw("XACK", raw.keys.stream, "default", entry_id)
        await raw("XDEL", raw.keys.stream, entry_id)

    running = await running_worker(steal)
    await queue.add("theirs", 1)
    await eventually(lambda: running.worker.health().stale_outcomes == 1)
    await running.stop()

    ((outcome, row),) = await attempts()
    assert (outcome, row.name) == ("stale", "theirs")


async def test_entries_of_a_run_are_numbered_and_the_last_one_says_so(
    queue, url, queue_name, history
):
    await queue.add_bulk([{"name": "many", "data": at} for at in range(2_500)])
    await work(url, queue_name, handler, consumer_id="me")
    await queue.add("one", 1)
    await work(url, queue_name, handler, consumer_id="me")

    entries = await history()
    first, second = dict.fromkeys(entry.run for entry in entries)
    seqs = [[entry.seq for entry in entries if entry.run == run] for run in (first, second)]
    assert seqs == [list(range(1, len(seqs[0]) + 1)), [1]]
    assert [entry.is_last for entry in entries] == [False] * (len(seqs[0]) - 1) + [True, True]
    assert {entry.worker for entry in entries} == {"me"}
    assert sum(entry.row_count for entry in entries) == 2_501
    assert max(entry.row_count for entry in entries) == 1_000


async def test_a_run_without_any_job_says_nothing(url, queue_name, raw):
    await work(url, queue_name, handler)

    assert await raw("EXISTS", raw.keys.history) == 0


async def test_rows_are_there_soon_while_the_worker_goes_on(queue, running_worker, attempts):
    await running_worker(handler)
    await queue.add("one", 1)

    async def has_row():
        return bool(await attempts())

    await eventually(has_row, within_s=5)


async def test_rows_are_there_only_once_their_jobs_are_done(queue, running_worker, attempts):
    gate = asyncio.Event()

    async def wait_or_not(job):
        if job.name == "long":
            await gate.wait()

    running = await running_worker(wait_or_not)
    await queue.add_bulk([{"name": "long", "data": 1}] * 20)
    await eventually(lambda: running.worker.health().running == 20)
    # As many as are written at once, and added after the others had begun.
    await queue.add_bulk([{"name": "short", "data": 1}] * 20)

    async def names():
        return {row.name for _, row in await attempts()}

    await eventually(names, within_s=5)
    before = await names()
    gate.set()
    await running.stop()

    assert before == {"short"}
    assert len(await attempts()) == 40


async def test_a_history_that_is_switched_off_is_not_written(queue, url, queue_name, raw):
    await queue.add("one", 1)
    await work(url, queue_name, handler, history=False)

    assert await raw("EXISTS", raw.keys.history) == 0


async def test_a_budget_that_is_no_number_of_bytes_is_refused(queue_name):
    with pytest.raises(SettingsError, match="history_max_bytes must be at least 65536, got 0"):
        Worker(queue_name, handler, history_max_bytes=0)


@pytest.mark.timeout(600 if IS_BIG else 120)
async def test_the_history_keeps_to_its_bytes_all_the_time(
    queue, queue_name, running_worker, raw, kind
):
    """Several times what it may hold goes through; every batch a look at its size."""
    sizes = []
    running = await running_worker(handler, history_max_bytes=CAP_BYTES, events="off")
    for done in range(CAP_BATCH, CAP_JOBS + 1, CAP_BATCH):
        await queue.add_bulk([{"name": "send-welcome-mail", "data": 1}] * CAP_BATCH)
        await eventually(lambda done=done: running.worker.health().completed == done, within_s=30)
        sizes.append(await raw("MEMORY", "USAGE", raw.keys.history, "SAMPLES", 0) or 0)
    await running.stop()

    print(
        f"{kind.label}: {CAP_JOBS} attempts, cap {CAP_BYTES}: {max(sizes)} at most, {sizes[-1]} now"
    )
    assert max(sizes) <= 1.2 * CAP_BYTES
    assert sizes[-1] >= 0.8 * CAP_BYTES


@pytest.mark.parametrize("rows", [10, 100, 1_000])
async def test_a_row_costs_at_most_60_bytes_of_the_server(
    queue, url, queue_name, raw, history, rows
):
    """As many entries as fill several nodes of the stream, each with so many rows."""
    await queue.add_bulk([{"name": "send-welcome-mail", "data": at} for at in range(rows)])
    await work(url, queue_name, handler, events="off")
    (_, fields), *_ = await raw("XRANGE", raw.keys.history, "-", "+")
    await raw("DEL", raw.keys.history)
    count = 100_000 // rows
    for _ in range(count):
        await raw("XADD", raw.keys.history, "*", *fields)

    size_bytes = await raw("MEMORY", "USAGE", raw.keys.history, "SAMPLES", 0)

    assert (await history())[0].row_count == rows
    assert size_bytes / (count * rows) <= 60


async def test_no_row_is_lost_or_doubled_when_connections_break(queue, url, queue_name, attempts):
    async with FaultProxy(url) as proxy:
        worker = Worker(queue_name, handler, redis_url=proxy.url)
        running = asyncio.create_task(worker.run())
        added = []
        for _ in range(12):
            added += [job.id for job in await queue.add_bulk([{"name": "a", "data": 1}] * 150)]
            await asyncio.sleep(0.06)
            proxy.cut()
        await eventually(lambda: ended_of(worker) >= len(added), within_s=40)
        await worker.close()
        await running

    rows = await attempts()
    ended = [row.job_id for outcome, row in rows if outcome in ("completed", "unproven")]
    assert len(ended) == len(set(ended))
    assert set(ended) <= set(added)
    assert len(ended) == ended_of(worker)


async def test_rows_that_a_refusing_server_costs_are_counted(
    queue, running_worker, history, raw, caplog
):
    await raw("SET", raw.keys.history, "somebody's")
    running = await running_worker(handler, events="off")
    await queue.add_bulk([{"name": "a", "data": 1}] * 21_500)
    await eventually(lambda: running.worker.health().completed == 21_500, within_s=30)
    await eventually(lambda: f"of queue {raw.keys.queue} cannot be written now" in caplog.text)
    await raw("DEL", raw.keys.history)
    await running.stop()

    entries = await history()
    assert sum(e.lost for e in entries) >= 500
    assert sum(e.lost + e.row_count for e in entries) == 21_500
    assert caplog.text.count(f"of queue {raw.keys.queue} cannot be written now") == 1


async def test_a_history_that_is_refused_keeps_nobody_from_leaving(queue, running_worker, raw):
    await raw("SET", raw.keys.history, "somebody's")
    running = await running_worker(handler, events="off")
    await queue.add("a", 1)
    await eventually(lambda: running.worker.health().completed == 1)

    await running.stop()

    assert await raw.consumers() == []
    assert await raw("EXISTS", raw.keys.promoter_lock, raw.keys.scheduler_lock) == 0


async def test_the_servers_clock_counts_not_the_workers(
    queue, url, queue_name, attempts, monkeypatch
):
    real_ns = time.time_ns
    await queue.add("one", 1)
    monkeypatch.setattr(time, "time", lambda: real_ns() / 1e9 + 86_400)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 86_400 * 10**9)
    await work(url, queue_name, handler)

    ((_, row),) = await attempts()
    assert abs(row.started_at_us / 1e6 - real_ns() / 1e9) < 60


@pytest.mark.parametrize("cut_after_ms", [0, 1, 2, 3, 5, 8])
async def test_a_cut_while_leaving_costs_no_row_and_no_lock(
    queue, url, queue_name, history, raw, cut_after_ms
):
    async with FaultProxy(url) as proxy:
        worker = Worker(queue_name, handler, redis_url=proxy.url, shutdown_deadline_ms=5_000)
        running = asyncio.create_task(worker.run())
        await queue.add_bulk([{"name": "a", "data": 1}] * 5)
        await eventually(lambda: worker.health().completed == 5)
        asyncio.get_running_loop().call_later(cut_after_ms / 1000, proxy.cut)
        await worker.close()
        await running

    entries = await history()
    assert sum(entry.row_count for entry in entries) == 5
    assert [entry.is_last for entry in entries][-1:] == [True]
    assert sum(entry.is_last for entry in entries) == 1
    assert await raw("EXISTS", raw.keys.promoter_lock, raw.keys.scheduler_lock) == 0


async def test_a_slow_way_back_after_a_cut_while_leaving_costs_no_row(
    queue, url, queue_name, history
):
    async with FaultProxy(url) as proxy:
        worker = Worker(queue_name, handler, redis_url=proxy.url, shutdown_deadline_ms=20_000)
        running = asyncio.create_task(worker.run())
        await queue.add_bulk([{"name": "a", "data": 1}] * 5)
        await eventually(lambda: worker.health().completed == 5)
        # A new connection needs some answers before it can be used.
        proxy.latency_s = 0.2
        proxy.cut()
        await worker.close()
        await running

    entries = await history()
    assert sum(entry.row_count for entry in entries) == 5
    assert [entry.is_last for entry in entries][-1:] == [True]


async def test_rows_of_many_errors_leave_in_entries_of_about_a_megabyte(
    queue, url, queue_name, history, raw
):
    async def fail(job):
        raise UnrecoverableError("ж" * 600 + str(job.data))

    await queue.add_bulk([{"name": "a", "data": at} for at in range(900)])
    await work(url, queue_name, fail, events="off")

    sizes = [sum(map(len, fields)) for _, fields in await raw("XRANGE", raw.keys.history, "-", "+")]
    assert sum(entry.row_count for entry in await history()) == 900
    assert max(sizes) <= 1.1 * MIB


async def test_a_due_time_that_no_clock_shows_costs_no_row(queue, url, queue_name, attempts, raw):
    await queue.add_bulk([{"name": "a", "data": 1}] * 3)
    ((_, fields), *_) = await raw("XRANGE", raw.keys.stream, "-", "+")
    await raw("XADD", raw.keys.stream, "*", *fields, "due", "9" * 20)
    await work(url, queue_name, handler)

    rows = await attempts()
    assert [row.due_ms for _, row in rows] == [None] * 4


async def test_the_marker_of_a_run_that_ended_goes_soon(queue, url, queue_name, raw):
    await queue.add("one", 1)
    await work(url, queue_name, handler)

    (marker,) = await raw("KEYS", raw.keys.token("history:*"))
    assert 0 < await raw("TTL", marker) <= 120
