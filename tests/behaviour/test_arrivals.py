"""What arrives broken goes to the DLQ with its bytes and a reason; nobody else notices."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq.model.delivery import fingerprint
from chasquimq.model.job_options import RetryOverride
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.payload import encode_payload
from support.waiting import eventually


async def noop(job):
    return


GOOD = encode_envelope("job-1", encode_payload(None), 1)
BROKEN = [
    pytest.param(("n", "greet"), b"malformed", b"", b"field `d`", id="no_d"),
    pytest.param(("x", "1", "n", "greet"), b"malformed", b"", b"field `d`", id="other_fields"),
    pytest.param(("d", b"\xc1", "n", "greet"), b"decode_failed", b"\xc1", b"", id="no_messagepack"),
    pytest.param(("d", b"", "n", "greet"), b"decode_failed", b"", b"", id="empty_d"),
    pytest.param(("d", b"\x01", "n", "greet"), b"decode_failed", b"\x01", b"", id="no_envelope"),
    pytest.param(
        ("d", GOOD[:-1], "n", "greet"), b"decode_failed", GOOD[:-1], b"", id="cut_off"
    ),
    pytest.param(
        ("d", b"\x91" * 3000, "n", "greet"), b"decode_failed", b"\x91" * 3000, b"", id="nested"
    ),
    pytest.param(
        ("d", GOOD + b"x" * 5000, "n", "greet"), b"oversize_payload", GOOD + b"x" * 5000,
        b"bytes, at most 4096", id="oversize",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "reason", "body", "detail"), BROKEN)
async def test_a_broken_entry_is_buried_with_its_bytes_name_and_reason(
    queue, raw, running_worker, fields, reason, body, detail
):
    done = []

    async def handler(job):
        done.append(job.data)

    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    source_id = await raw("XADD", raw.keys.stream, "*", *fields)
    await queue.add_bulk([{"name": "n", "data": i} for i in range(20)])

    running = await running_worker(handler, max_payload_bytes=4096)

    (entry,) = await eventually(raw.dlq)
    await eventually(lambda: len(done) == 20)
    assert (entry[b"reason"], entry[b"d"], entry[b"source_id"]) == (reason, body, source_id)
    assert entry[b"n"] == b"greet"
    assert entry[b"detail"]
    assert detail in entry[b"detail"]
    assert entry[b"attempt"] == b"0"
    assert int(entry[b"failed_at"]) > 0
    assert await raw("XLEN", raw.keys.stream) == 0
    assert running.worker.health().buried == 1
    assert running.worker.health().failed == 0


async def test_an_entry_of_exactly_the_largest_size_runs(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.id)

    await running_worker(handler, max_payload_bytes=len(GOOD))
    await raw("XADD", raw.keys.stream, "*", "d", GOOD)

    await eventually(lambda: seen == ["job-1"])


@pytest.mark.parametrize("name", [b"\xff\xfe", b""], ids=["not_utf8", "empty"])
async def test_a_name_that_is_no_text_is_read_as_none(raw, running_worker, name):
    seen = []

    async def handler(job):
        seen.append(job.name)

    await running_worker(handler)
    await raw("XADD", raw.keys.stream, "*", "d", GOOD, "n", name)

    await eventually(lambda: seen == [""])


async def test_fields_may_come_in_any_order_and_strange_ones_are_ignored(raw, running_worker):
    seen = []

    async def handler(job):
        seen.append((job.id, job.name))

    await running_worker(handler)
    await raw("XADD", raw.keys.stream, "*", "zz", "1", "n", "greet", "d", GOOD, "d", b"\xc1")

    await eventually(lambda: seen == [("job-1", "greet")])


async def test_a_flood_of_broken_entries_does_not_hold_up_the_good_ones(queue, raw, running_worker):
    done = []

    async def handler(job):
        done.append(job.id)

    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await asyncio.gather(*(raw("XADD", raw.keys.stream, "*", "d", b"\xc1") for _ in range(3000)))
    await queue.add_bulk([{"name": "n", "data": i} for i in range(20)])

    running = await running_worker(handler, concurrency=2)

    await eventually(lambda: len(done) == 20)
    await eventually(lambda: running.worker.health().buried == 3000)
    assert await raw("XLEN", raw.keys.dlq) == 3000
    assert await raw("XLEN", raw.keys.stream) == 0


@pytest.mark.parametrize(
    ("spent", "limit"), [(3, 3), (9, 3), (0, 0)], ids=["spent", "overspent", "no_budget"]
)
async def test_a_job_that_has_spent_its_budget_is_buried_unstarted(
    raw, running_worker, spent, limit
):
    seen = []

    async def handler(job):
        seen.append(job.id)

    await running_worker(handler, max_attempts=25)
    retry = RetryOverride(limit, None)
    envelope = encode_envelope("job-1", encode_payload(None), 1, spent, retry)
    await raw("XADD", raw.keys.stream, "*", "d", envelope, "n", "greet")

    (entry,) = await eventually(raw.dlq)
    assert (entry[b"reason"], entry[b"n"]) == (b"retries_exhausted", b"greet")
    assert (entry[b"d"], entry[b"attempt"]) == (envelope, str(spent).encode())
    assert seen == []


async def test_a_job_whose_deliveries_spent_its_budget_is_a_crash_loop(raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.id)

    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    entry_id = await raw("XADD", raw.keys.stream, "*", "d", GOOD, "n", "greet")
    await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", raw.keys.stream, ">")
    await claim_as_dead(raw, entry_id, deliveries=3)
    await running_worker(handler, max_attempts=3)

    (entry,) = await eventually(raw.dlq)
    assert (entry[b"reason"], entry[b"attempt"]) == (b"crash_loop", b"3")
    assert entry[b"d"] == GOOD
    assert seen == []


async def test_a_crash_loop_says_how_its_runs_ended(raw, queue_name, running_worker, caplog):
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    for job_id, spent in (("job-1", 0), ("job-2", 2)):
        envelope = encode_envelope(job_id, encode_payload(None), 1, spent)
        entry_id = await raw("XADD", raw.keys.stream, "*", "d", envelope, "n", "greet")
        await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", raw.keys.stream, ">")
        await claim_as_dead(raw, entry_id, deliveries=3 - spent)

    running = await running_worker(noop, max_attempts=3)

    await eventually(lambda: running.worker.health().buried == 2)
    entries = await raw.dlq()
    assert {entry[b"detail"] for entry in entries} == {
        b"3 of 3 runs reported no end: their workers died or went silent",
        b"1 of 3 runs reported no end: its worker died or went silent",
    }
    # All crash loops are one kind, as they are in the history.
    assert {entry[b"fp"].decode() for entry in entries} == {fingerprint("crash_loop", "")}
    line, _ = sorted(one.getMessage() for one in caplog.records if "crash_loop" in one.getMessage())
    assert line.startswith(f"job job-1 (greet) of queue {queue_name} is buried as crash_loop after")
    assert "run 3: 3 of 3 runs reported no end: their workers died or went silent; look for" in line


async def test_attempts_and_deliveries_are_one_budget(raw, running_worker):
    seen = []

    async def handler(job):
        seen.append((job.attempt, job.run_number, job.redelivered))

    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    envelope = encode_envelope("job-1", encode_payload(None), 1, 2)
    entry_id = await raw("XADD", raw.keys.stream, "*", "d", envelope)
    await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", raw.keys.stream, ">")
    await claim_as_dead(raw, entry_id, deliveries=3)
    await running_worker(handler, max_attempts=6)

    await eventually(lambda: seen)
    assert seen == [(5, 6, True)]


async def claim_as_dead(raw, entry_id, *, deliveries):
    await raw(
        "XCLAIM", raw.keys.stream, "default", "dead", 0, entry_id,
        "IDLE", 3_600_000, "RETRYCOUNT", deliveries, "JUSTID",
    )  # fmt: skip
