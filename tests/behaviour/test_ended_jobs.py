"""get_job after the end: all that the DLQ, the outcome and the history know is told together."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from chasquimq import UnrecoverableError
from chasquimq.blocking import Queue as BlockingQueue
from chasquimq.settings import RetrySettings
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.history import decode_history
from chasquimq.wire.outcome import decode_outcome
from support.waiting import eventually

SOON = RetrySettings(initial_backoff_ms=1, max_backoff_ms=1, jitter_ms=0)
STORED = {"results and history": (True, True), "results": (True, False), "history": (False, True),
          "neither": (False, False)}  # fmt: skip
each_way_of_keeping = pytest.mark.parametrize("stored", STORED.values(), ids=STORED)


def is_near_now(ms: int) -> bool:
    return abs(ms - time.time() * 1000) < 60_000


async def charge(job):
    await asyncio.sleep(0.02)
    if job.data["card"] == "bad":
        raise ValueError("no such card")
    return job.data["card"]


@pytest.fixture
def run(queue, running_worker):
    """Run jobs to their ends and let the worker write all it has; answers their ids."""

    async def until_ended(*cards: str, stored=(True, True), handler=charge, **options):
        results, history = stored
        known = {"max_attempts": 2, "retry": SOON, "consumer_id": "w1"} | options
        running = await running_worker(handler, store_results=results, history=history, **known)
        jobs = [await queue.add("charge", {"card": one}) for one in cards]
        health = running.worker.health
        await eventually(
            lambda: health().completed + health().buried == len(cards), what="the ends"
        )
        await running.stop()
        return [job.id for job in jobs]

    return until_ended


@each_way_of_keeping
async def test_a_dead_job_tells_all_that_is_known_however_results_are_kept(queue, run, stored):
    (job_id,) = await run("bad", stored=stored)
    (letter,) = await queue.peek_dlq()

    found = await queue.get_job(job_id)

    assert (found.state, found.source, found.entry_id) == ("dead", "dlq", letter["dlq_id"])
    assert (found.name, found.attempt, found.reason) == ("charge", 2, "retries_exhausted")
    assert (found.data, found.is_decoded) == ({"card": "bad"}, True)
    assert found.error == "ValueError: no such card"
    assert found.traceback.splitlines()[-1] == "ValueError: no such card"
    assert is_near_now(found.created_at_ms)
    assert found.created_at_ms <= found.ready_at_ms + 1_000
    assert found.ready_at_ms <= found.finished_at_ms + 100
    assert found.finished_at_ms == letter["failed_at_ms"]
    assert not found.has_result


@each_way_of_keeping
async def test_a_completed_job_tells_all_that_is_known_however_results_are_kept(queue, run, stored):
    (job_id,) = await run("good", stored=stored)
    results, history = stored

    found = await queue.get_job(job_id)

    if not (results or history):
        assert (found.state, found.name) == ("unknown", None)
        return
    assert (found.state, found.source) == ("completed", "outcome" if results else "history")
    assert (found.name, found.attempt, found.has_result) == ("charge", 1, results)
    assert is_near_now(found.finished_at_ms)


async def test_the_history_knows_who_ran_a_job_when_and_for_how_long(queue, run):
    ids = await run("good", "bad")

    for job_id in ids:
        found = await queue.get_job(job_id)
        assert found.worker == "w1"
        assert 10_000 <= found.duration_us <= 60_000_000
        assert is_near_now(found.created_at_ms)
        # A worker knows the server's clock to some milliseconds.
        assert found.ready_at_ms - 100 <= found.started_at_ms <= found.finished_at_ms + 100
        assert found.started_at_ms + found.duration_us // 1000 <= found.finished_at_ms + 100


async def test_a_dead_job_that_was_deleted_keeps_its_name_and_its_runs(queue, run):
    (job_id,) = await run("bad")
    await queue.purge_dlq(all=True)

    found = await queue.get_job(job_id)

    assert (found.state, found.source, found.entry_id) == ("dead", "outcome", None)
    assert (found.name, found.attempt, found.reason) == ("charge", 2, "retries_exhausted")
    assert found.worker == "w1"


async def test_a_dead_job_that_was_deleted_is_known_by_the_history_alone(queue, run):
    (job_id,) = await run("bad", stored=(False, True))
    await queue.purge_dlq(all=True)

    found = await queue.get_job(job_id)

    assert (found.state, found.source, found.name) == ("dead", "history", "charge")
    assert (found.attempt, found.error) == (2, "ValueError: no such card")


async def test_a_job_that_the_other_implementation_sent_back_is_dead_no_more(queue, raw, run):
    (job_id,) = await run("bad")
    ((dlq_id, fields),) = await raw.entries(raw.keys.dlq)
    # It knows no outcomes, and so leaves them.
    await raw("XDEL", raw.keys.dlq, dlq_id)
    await raw("XADD", raw.keys.stream, "*", "d", fields[b"d"], "n", "charge")

    assert (await queue.get_job(job_id)).state == "ready"


async def test_a_job_that_came_back_and_completed_is_completed(queue, run, running_worker):
    (job_id,) = await run("bad", stored=(False, True))
    done = []

    async def repaired(job):
        done.append(job.id)

    running = await running_worker(repaired)
    await queue.replay_dlq()
    await eventually(lambda: running.worker.health().completed == 1)
    await running.stop()

    found = await queue.get_job(job_id)
    assert (found.state, found.source) == ("completed", "history")


async def test_a_result_that_is_kept_is_told_apart_from_none(queue, run):
    async def nothing(job):
        return None

    (with_result,) = await run("good")
    (without,) = await run("good", handler=nothing)

    assert (await queue.get_job(with_result)).has_result
    assert not (await queue.get_job(without)).has_result


OLD = [
    {"status": "completed", "has_result": True},
    {"status": "completed"},
    {"status": "dead", "reason": "unrecoverable", "error": "E: x"},
]


@pytest.mark.parametrize("outcome", OLD, ids=lambda one: one["status"])
async def test_outcomes_of_older_workers_are_read(queue, raw, outcome):
    await raw("SET", raw.keys.outcome("mine"), msgspec.msgpack.encode(outcome))

    found = await queue.get_job("mine")

    assert (found.state, found.source) == (outcome["status"], "outcome")
    assert (found.name, found.attempt, found.finished_at_ms) == (None, None, None)
    assert (found.reason, found.error) == (outcome.get("reason"), outcome.get("error"))


async def test_an_outcome_of_an_older_worker_is_completed_by_the_history(queue, raw, run):
    (job_id,) = await run("good")
    await raw("SET", raw.keys.outcome(job_id), msgspec.msgpack.encode({"status": "completed"}))

    found = await queue.get_job(job_id)

    assert (found.state, found.name, found.worker) == ("completed", "charge", "w1")


async def test_an_outcome_of_an_older_worker_hides_no_dlq_entry(queue, raw, run):
    (job_id,) = await run("bad")
    old = {"status": "dead", "reason": "retries_exhausted", "error": "ValueError: no such card"}
    await raw("SET", raw.keys.outcome(job_id), msgspec.msgpack.encode(old))

    found = await queue.get_job(job_id)

    assert (found.state, found.source, found.data) == ("dead", "dlq", {"card": "bad"})


@pytest.mark.parametrize(
    "odd",
    [{"dlq_id": "soon"}, {"dlq_id": "99999999999999999999-1"}, {"finished_ms": 10**30},
     {"finished_ms": -5}, {"name": 7}, {"dlq_id": "5-1"}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("status", ["dead", "completed"])
async def test_an_outcome_with_odd_facts_breaks_no_look(queue, raw, status, odd):
    outcome = {"status": status, "reason": "x", "finished_ms": 2**62} | odd
    raw_outcome = msgspec.msgpack.encode(outcome) if 10**30 not in odd.values() else b"\xc1"
    await raw("SET", raw.keys.outcome("mine"), raw_outcome)

    assert (await queue.get_job("mine")).state in (status, "unknown")


async def test_history_that_may_not_be_read_or_is_none_hides_nothing(queue, raw, run):
    (job_id,) = await run("good", stored=(True, False))
    await raw("SET", raw.keys.history, "something else")

    assert (await queue.get_job(job_id)).state == "completed"
    assert (await queue.get_job("nobody")).state == "unknown"


async def test_poison_in_the_history_hides_nothing(queue, raw, run):
    (job_id,) = await run("good", stored=(False, True))
    for fields in (
        ["b", job_id],
        ["v", "1", "b", b"\xc1" + job_id.encode()],
        ["v", "9", "x", job_id],
    ):
        await raw("XADD", raw.keys.history, "*", *fields)

    assert (await queue.get_job(job_id)).state == "completed"


async def test_a_job_deep_in_a_long_history_is_found_by_the_time_in_its_id(queue, raw, run):
    (job_id,) = await run("good", stored=(False, True))
    for _ in range(100):
        await raw("XADD", raw.keys.history, "*", "v", "1", "b", b"x" * 60_000)

    found = await queue.get_job(job_id)
    by_all = await queue.get_job(job_id, max_scanned_bytes=None)
    by_none = await queue.get_job(job_id, max_scanned_bytes=0)

    assert (found.state, by_all.state, by_none.state) == ("completed", "completed", "unknown")


async def test_a_look_for_an_unknown_job_reads_a_bounded_part_of_the_history(queue, raw):
    await queue.add("n", 1)
    for _ in range(200):
        await raw("XADD", raw.keys.history, "*", "v", "1", "b", b"x" * 60_000)
    before = await sent_bytes(raw)

    assert (await queue.get_job("nobody")).state == "unknown"

    assert await sent_bytes(raw) - before < 2 * 1024 * 1024


async def sent_bytes(raw) -> int:
    told = (await raw("INFO", "stats")).decode()
    return int(told.split("total_net_output_bytes:")[1].split()[0])


async def test_a_live_job_shows_its_data_and_its_times(queue):
    ready = await queue.add("greet", {"to": "ada"})
    delayed = await queue.add("greet", {"to": "grace"}, delay_ms=60_000)

    first, second = [await queue.get_job(one.id) for one in (ready, delayed)]

    assert (first.data, first.source, first.payload_bytes) == ({"to": "ada"}, "stream", 8)
    assert (second.data, second.source) == ({"to": "grace"}, "delayed")
    assert all(is_near_now(ms) for ms in (first.created_at_ms, first.ready_at_ms, second.due_ms))


async def test_a_running_job_shows_its_data_and_its_worker(queue, running_worker):
    started, may_end = asyncio.Event(), asyncio.Event()

    async def handler(job):
        started.set()
        await may_end.wait()

    await running_worker(handler, consumer_id="w1")
    job = await queue.add("greet", {"to": "ada"})
    await started.wait()
    found = await queue.get_job(job.id)
    may_end.set()

    assert (found.state, found.worker, found.data) == ("running", "w1", {"to": "ada"})


@pytest.mark.parametrize("size_bytes", [100, 2 * 1024 * 1024], ids=["no MessagePack", "too long"])
async def test_data_that_is_not_decoded_is_told_by_its_size(queue, raw, size_bytes):
    envelope = encode_envelope("mine", b"\xc1" * size_bytes, 5)
    await raw("XADD", raw.keys.stream, "*", "d", envelope)

    found = await queue.get_job("mine")

    assert (found.data, found.is_decoded, found.payload_bytes) == (None, False, size_bytes)


async def test_the_outcome_says_what_the_page_of_the_keys_says(queue, raw, run):
    good, bad = await run("good", "bad")

    completed, dead = [
        decode_outcome(await raw("GET", raw.keys.outcome(one))) for one in (good, bad)
    ]

    assert (completed.name, completed.attempt, completed.has_result) == ("charge", 1, True)
    assert is_near_now(completed.finished_ms)
    ((dlq_id, _),) = await raw.entries(raw.keys.dlq)
    assert (dead.name, dead.attempt, dead.dlq_id) == ("charge", 2, dlq_id.decode())


async def test_jobs_that_end_together_each_have_their_own_outcome(queue, run):
    seen = set()

    async def now_and_then(job):
        if job.data["card"] == "twice" and job.id not in seen:
            seen.add(job.id)
            raise ValueError("again")
        return None if job.data["card"] == "silent" else 1

    ids = await run("silent", "plain", "twice", handler=now_and_then)

    facts = [await queue.get_job(one) for one in ids]
    assert [(one.attempt, one.has_result) for one in facts] == [(1, False), (1, True), (2, True)]


async def test_history_entries_are_not_decoded_in_vain(queue, raw, run):
    """Only entries that hold the bytes of the id are opened; that they can be, is checked here."""
    (job_id,) = await run("good", stored=(False, True))

    entries = await raw.entries(raw.keys.history)
    held = [fields for _, fields in entries if job_id.encode() in fields[b"b"]]
    assert len(held) == 1
    flat = [part for pair in held[0].items() for part in pair]
    assert decode_history(flat).columns.job_ids == [job_id]


async def test_an_unrecoverable_job_of_a_queue_without_results_is_told_whole(queue, run):
    async def refuse(job):
        raise UnrecoverableError("no such card")

    (job_id,) = await run("any", handler=refuse, stored=(False, False))

    found = await queue.get_job(job_id)
    assert (found.reason, found.attempt, found.data) == ("unrecoverable", 1, {"card": "any"})


async def test_the_blocking_queue_tells_the_same(queue, run, url, queue_name):
    (job_id,) = await run("good")

    def ask():
        with BlockingQueue(queue_name, redis_url=url) as blocking:
            return blocking.get_job(job_id)

    assert await asyncio.to_thread(ask) == await queue.get_job(job_id)
