"""Retries: a failed job comes back when its rule says, as itself, until its budget is spent."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from chasquimq import BackoffSpec, UnrecoverableError
from chasquimq.errors import RetryLater
from chasquimq.model.delivery import fingerprint
from chasquimq.settings import RetrySettings
from chasquimq.store.inspect.queue import server_ms
from chasquimq.wire.envelope import decode_envelope, encode_envelope, read_extras
from chasquimq.wire.stream_entry import split_member
from support.waiting import eventually, patience
from wire.vectors import cases, load
from wire.vectors import raw as golden_bytes

CREATED_AT_MS = 1_700_000_000_000
AT_ONCE = RetrySettings(initial_backoff_ms=1, jitter_ms=0)
# What a slow machine may take between the failure and the look at the server's clock.
SLACK_MS = 250


def envelope(job_id="job", attempt=0, retry=None, extras=None, payload=b"\x01"):
    """Bytes of a job as any producer may spell them; `retry` is not checked."""
    parts = [job_id, payload, CREATED_AT_MS, attempt]
    spelled = msgspec.msgpack.encode([*parts, retry] if retry else parts)
    return spelled + msgspec.msgpack.encode(extras) if extras else spelled


async def put(raw, body, name="job"):
    await raw("XADD", raw.keys.stream, "*", "d", body, "n", name)


async def delayed(raw):
    """Members of the delayed set with their scores, as soon as there are any."""
    flat = await eventually(
        lambda: raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES"), what="a delayed job"
    )
    return list(zip(flat[::2], map(float, flat[1::2]), strict=True))


async def dead(raw, count=1):
    async def found():
        entries = await raw.dlq()
        return entries if len(entries) >= count else None

    return await eventually(found, what=f"{count} dead jobs")


# when it comes back


NO_WAIT = BackoffSpec.fixed(0, jitter_ms=0)


async def test_a_retry_without_a_wait_needs_no_promotion(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.attempt)
        if len(seen) < 3:
            raise ValueError("not yet")

    await running_worker(handler, events="terminal", delayed_enabled=False)
    await queue.add("fails", 1, backoff=NO_WAIT)

    await eventually(lambda: seen == [0, 1, 2], what="three runs")
    assert await raw("EXISTS", raw.keys.delayed, raw.keys.dix) == 0


async def test_a_handler_that_keeps_asking_for_no_time_waits_for_promotion(
    queue, raw, running_worker
):
    async def handler(job):
        raise RetryLater(0)

    await running_worker(handler, events="off", delayed_enabled=False)
    await queue.add("asks", 1)

    assert len(await delayed(raw)) == 1


async def test_where_all_events_are_told_a_retry_without_a_wait_is_told_as_waiting(
    queue, raw, running_worker
):
    async def handler(job):
        if job.attempt == 0:
            raise ValueError("once")

    await running_worker(handler, events="full")
    job = await queue.add("fails", 1, backoff=NO_WAIT)

    async def told():
        entries = await raw.entries(raw.keys.events)
        names = [fields[b"e"].decode() for _, fields in entries if fields[b"id"] == job.id.encode()]
        return names if names[-1:] == ["completed"] else None

    ends = ["failed", "retry-scheduled", "waiting", "active", "completed"]
    assert await eventually(told, what="the end") == ["active", *ends]


@pytest.fixture
def waits(raw, running_worker):
    """Let a job of these bytes fail; answers how long it waits for its next run, in ms."""

    async def measure(body, **options):
        failed_ms = []

        async def handler(job):
            failed_ms.append(await server_ms(raw.connection))
            raise ValueError("no")

        await running_worker(handler, delayed_enabled=False, **options)
        await put(raw, body)
        ((_, score),) = await delayed(raw)
        return score - failed_ms[0]

    return measure


@pytest.mark.parametrize(
    ("rule", "attempt", "wait_ms"),
    [
        pytest.param(["fixed", 5_000, None, None, 0], 0, 5_000, id="fixed"),
        pytest.param(["fixed", 5_000, None, None, 0], 4, 5_000, id="fixed, fifth"),
        pytest.param(["exponential", 500, None, 3.0, 0], 0, 500, id="exponential, first"),
        pytest.param(["exponential", 500, None, 3.0, 0], 2, 4_500, id="exponential, third"),
        pytest.param(["exponential", 500, 2_000, 3.0, 0], 9, 2_000, id="exponential, capped"),
        pytest.param(["exponential", 500, None, None, 0], 3, 4_000, id="multiplier left open"),
        pytest.param(["fibonacci", 500, None, 3.0, 0], 2, 4_500, id="unknown kind"),
        pytest.param(["", 500, None, 2.0, 0], 1, 1_000, id="empty kind"),
    ],
)
async def test_a_job_waits_as_its_own_rule_says(waits, rule, attempt, wait_ms):
    waited_ms = await waits(envelope(attempt=attempt, retry=[None, rule]))

    assert wait_ms <= waited_ms < wait_ms + SLACK_MS * patience()


@pytest.mark.parametrize(
    ("attempt", "least_ms", "most_ms"), [(0, 400, 600), (2, 3_600, 3_800), (8, 9_000, 9_200)]
)
async def test_a_job_without_a_rule_waits_as_the_worker_says(waits, attempt, least_ms, most_ms):
    settings = RetrySettings(
        initial_backoff_ms=400, multiplier=3.0, max_backoff_ms=9_000, jitter_ms=200
    )

    waited_ms = await waits(envelope(attempt=attempt), retry=settings)

    assert least_ms <= waited_ms < most_ms + SLACK_MS * patience()


async def test_jitter_is_added_to_the_wait_and_never_taken_from_it(raw, queue, running_worker):
    async def handler(job):
        raise ValueError("no")

    await queue.add_bulk(
        [
            {"name": "j", "data": 0, "backoff": {"kind": "fixed", "delay_ms": 0, "jitter_ms": 60_000}}
            for _ in range(200)
        ]
    )  # fmt: skip
    before_ms = await server_ms(raw.connection)
    await running_worker(handler, delayed_enabled=False)

    await eventually(lambda: _is_card(raw, 200))
    waits_ms = [score - before_ms for _, score in await delayed(raw)]
    assert 0 <= min(waits_ms) < 10_000
    assert 50_000 < max(waits_ms) < 60_000 + 2_000


async def _is_card(raw, count):
    return await raw("ZCARD", raw.keys.delayed) == count


# how often it comes back


@pytest.mark.parametrize(
    ("own", "workers", "runs"), [(2, 25, 2), (5, 2, 5), (None, 3, 3), (1, 9, 1)]
)
async def test_a_job_runs_as_often_as_its_own_budget_or_the_workers(
    queue, raw, running_worker, own, workers, runs
):
    seen = []

    async def handler(job):
        seen.append((job.attempt, job.run_number))
        raise ValueError("always")

    await running_worker(handler, max_attempts=workers, retry=AT_ONCE)
    await queue.add("fails", 1, attempts=own)

    (fields,) = await dead(raw)
    assert seen == [(at, at + 1) for at in range(runs)]
    assert fields[b"reason"] == b"retries_exhausted"
    assert (await queue.counts()).backlog == 0


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(envelope(retry=[0, None]), id="a budget of none"),
        pytest.param(envelope(attempt=2, retry=[2, None]), id="a budget that is spent"),
        pytest.param(envelope(attempt=2**32 - 1), id="the largest count"),
    ],
)
async def test_a_job_without_budget_is_buried_before_it_starts(raw, running_worker, body):
    seen = []

    async def handler(job):
        seen.append(job.id)

    await running_worker(handler)
    await put(raw, body)

    (fields,) = await dead(raw)
    assert (fields[b"reason"], fields[b"d"], seen) == (b"retries_exhausted", body, [])
    assert b"error" not in fields


async def test_an_unrecoverable_error_is_not_retried(queue, raw, running_worker):
    async def handler(job):
        raise UnrecoverableError("wrong address")

    await running_worker(handler)
    await queue.add("fails", 1, attempts=9, backoff=BackoffSpec.fixed(1))

    (fields,) = await dead(raw)
    assert (fields[b"reason"], fields[b"attempt"]) == (b"unrecoverable", b"1")


async def test_running_again_later_spends_no_attempt(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.run_number)
        if len(seen) <= 3:
            raise RetryLater(5)
        raise ValueError("now it counts")

    await running_worker(handler, retry=AT_ONCE)
    await queue.add("waits", 1, attempts=2)

    (fields,) = await dead(raw)
    assert seen == [1, 1, 1, 1, 2]
    assert (fields[b"attempt"], fields[b"error"]) == (b"2", b"ValueError: now it counts")


# as itself


async def test_a_retried_job_keeps_everything_but_its_count(raw, running_worker):
    async def handler(job):
        raise ValueError("no")

    rule = [7, ["fixed", 60_000, None, None, 0]]
    extras = {"timeout_ms": 5_000, "traceparent": "00-ab", "from a newer version": [1, None]}
    await running_worker(handler, delayed_enabled=False)
    await put(raw, envelope("id é/1", 2, rule, extras, payload=b"\xc4\x02hi"), name="näme")

    ((member, _),) = await delayed(raw)
    name, body = split_member(member)
    kept = decode_envelope(body)
    assert (name, kept.id, kept.payload) == ("näme", "id é/1", b"\xc4\x02hi")
    assert (kept.created_at_ms, kept.attempt) == (CREATED_AT_MS, 3)
    assert msgspec.to_builtins(kept.retry) == rule
    assert read_extras(body) == extras


async def test_a_retried_job_can_be_cancelled_while_it_waits(queue, raw, running_worker):
    async def handler(job):
        raise ValueError("no")

    await running_worker(handler)
    job = await queue.add("fails", 1, backoff=BackoffSpec.fixed(60_000))
    await delayed(raw)

    assert await queue.cancel_delayed(job.id)
    assert (await queue.counts()).backlog == 0


RESCHEDULED = load("dlq_and_retries")["dlq"]["retry_reschedules"]


@pytest.mark.parametrize("vector", cases(RESCHEDULED, key="run_at_ms"))
async def test_a_retried_job_is_spelled_byte_for_byte_as_the_original_does(
    raw, running_worker, vector
):
    async def handler(job):
        raise ValueError("no")

    member = golden_bytes(vector["member_hex"])
    name, after = split_member(member)
    last = decode_envelope(after)
    before = encode_envelope(
        last.id, last.payload, last.created_at_ms, last.attempt - 1, last.retry
    )
    await running_worker(handler, delayed_enabled=False)
    await put(raw, before, name)

    ((found, _),) = await delayed(raw)
    assert found.hex() == member.hex()


# what the DLQ tells


async def test_a_dead_job_says_how_often_when_and_of_what_it_died(queue, raw, running_worker):
    async def handler(job):
        raise LookupError(f"order {job.data} not found")

    await running_worker(handler, retry=AT_ONCE)
    before_ms = await server_ms(raw.connection)
    job = await queue.add("charge", 7, attempts=2)

    (fields,) = await dead(raw)
    after_ms = await server_ms(raw.connection)
    body = decode_envelope(fields[b"d"])
    assert (body.id, body.attempt, fields[b"n"]) == (job.id, 1, b"charge")
    assert fields[b"attempt"] == b"2"
    assert before_ms <= int(fields[b"failed_at"]) <= after_ms
    assert fields[b"error"] == b"LookupError: order 7 not found"
    assert fields[b"fp"].decode() == fingerprint("LookupError", "order 8 not found")


# What the original refused on arrival, with the reason it gave; its worker had these limits.
REFUSED = [
    entry
    for entry in load("dlq_and_retries")["dlq"]["entries"]
    if (entry["made_by"] or "").startswith("raw XADD")
]
LIMITS = {"max_attempts": 2, "max_payload_bytes": 500}


@pytest.mark.parametrize("entry", cases(REFUSED))
async def test_what_the_original_buries_is_buried_for_the_same_reason_with_its_bytes(
    raw, running_worker, entry
):
    async def handler(job):
        raise AssertionError("it must not start")

    pairs = json.loads(entry["made_by"].partition("fields ")[2])
    await running_worker(handler, **LIMITS)
    source_id = await raw(
        "XADD", raw.keys.stream, "*",
        *[part for name, value in pairs for part in (name, bytes.fromhex(value))],
    )  # fmt: skip

    (found,) = await dead(raw)
    assert found[b"reason"].decode() == entry["reason"]
    assert found[b"d"] == golden_bytes(entry["d_hex"])
    assert found[b"source_id"] == source_id


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


class Trapped(Exception):
    def __getattr__(self, name):
        raise RuntimeError(f"no {name} here")


class Liar(Exception):
    type_name = 7
    message = None


HOSTILE = [
    pytest.param(Unprintable(), "Unprintable: <exception str() failed>", id="str fails"),
    pytest.param(Trapped("boo"), "Trapped: boo", id="attributes fail"),
    pytest.param(Liar("boo"), "Liar: boo", id="looks like a child's error"),
    pytest.param(ValueError("file \udcff.txt"), "ValueError: file \\udcff.txt", id="half a letter"),
    pytest.param(ValueError("\0\r\n\x1b[31m"), "ValueError: \0\r\n\x1b[31m", id="control bytes"),
    pytest.param(ValueError("x" * 100_000), "ValueError: " + "x" * 512, id="a whole document"),
    pytest.param(ValueError(), "ValueError", id="nothing to say"),
    pytest.param(asyncio.CancelledError("self"), "CancelledError: self", id="cancelled by itself"),
    pytest.param(GeneratorExit(), "GeneratorExit", id="generator exit"),
    pytest.param(SystemExit(3), "SystemExit: 3", id="system exit"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("suspends", "keeps_results"), [(False, False), (True, True)], ids=["at once", "after a wait"]
)
@pytest.mark.parametrize(("error", "text"), HOSTILE)
async def test_no_error_is_too_strange_to_be_kept_and_the_next_job_runs(
    queue, raw, running_worker, error, text, keeps_results, suspends
):
    seen = []

    async def handler(job):
        if suspends:
            await asyncio.sleep(0)
        seen.append(job.data)
        if job.data == "bad":
            raise error

    running = await running_worker(handler, concurrency=1, store_results=keeps_results)
    await queue.add("bad", "bad", attempts=1)
    await queue.add("good", "good", attempts=1)

    (fields,) = await dead(raw)
    await eventually(lambda: seen == ["bad", "good"])
    await eventually(lambda: running.worker.health().completed == 1)
    assert fields[b"error"].decode() == text
    assert len(fields[b"fp"]) == 16


class ClosedRow(dict):
    """Like a row of a session that is over: it cannot be read any more."""

    def __iter__(self):
        raise LookupError("the session is closed")

    items = keys = values = __iter__


@pytest.mark.parametrize("suspends", [False, True], ids=["at once", "after a wait"])
async def test_a_result_that_cannot_be_read_counts_as_a_failure_and_the_next_job_runs(
    queue, raw, running_worker, suspends
):
    async def handler(job):
        if suspends:
            await asyncio.sleep(0)
        return ClosedRow(a=1) if job.data == "bad" else job.data

    running = await running_worker(handler, concurrency=1, store_results=True)
    await queue.add("bad", "bad", attempts=1)
    good = await queue.add("good", "good", attempts=1)

    (fields,) = await dead(raw)
    assert fields[b"error"] == b"LookupError: the session is closed"
    assert await good.wait_for_result(timeout=5) == "good"
    assert running.worker.health().running == 0


HUGE = 2**64 - 1
FAR_RULES = [["fixed", HUGE, HUGE, None, HUGE], ["exponential", 2**53, HUGE, 1e308, 0]]


@pytest.mark.parametrize("rule", FAR_RULES, ids=["fixed", "exponential"])
async def test_a_wait_beyond_all_clocks_costs_only_its_own_job(queue, raw, running_worker, rule):
    seen = []

    async def handler(job):
        seen.append(job.data)
        raise ValueError("no")

    await running_worker(handler, retry=AT_ONCE)
    await put(raw, envelope(attempt=1, retry=[None, rule]))
    await queue.add("good", "good", attempts=3)

    (fields,) = await dead(raw)
    assert seen.count("good") == 3
    assert fields[b"error"] == b"ValueError: no"
    ((_, score),) = await delayed(raw)
    assert 2**51 < score < 2**53


@pytest.mark.parametrize("delay", [-5, 0, 1.9, True], ids=str)
async def test_a_short_wait_a_handler_asks_for_spends_nothing(queue, running_worker, delay):
    seen = []

    async def handler(job):
        seen.append((job.data, job.attempt))
        if len(seen) == 1:
            raise RetryLater(delay)

    await running_worker(handler)
    await queue.add("odd", "odd")

    await eventually(lambda: seen == [("odd", 0), ("odd", 0)])


@pytest.mark.parametrize("delay", [float("inf"), 10**30, 2**53], ids=str)
async def test_an_endless_wait_a_handler_asks_for_holds_up_no_other_retry(
    queue, raw, running_worker, delay
):
    seen = []

    async def handler(job):
        seen.append(job.data)
        raise RetryLater(delay) if job.data == "odd" else ValueError("no")

    await running_worker(handler, retry=AT_ONCE)
    await queue.add("odd", "odd")
    await queue.add("good", "good", attempts=3)

    await dead(raw)
    assert seen.count("good") == 3
    ((_, score),) = await delayed(raw)
    assert 2**51 < score < 2**53


@pytest.mark.parametrize("delay", [float("nan"), None, "soon"], ids=str)
async def test_a_wait_that_is_no_time_counts_as_a_failure(queue, raw, running_worker, delay):
    async def handler(job):
        raise RetryLater(delay)

    await running_worker(handler, retry=AT_ONCE)
    await queue.add("odd", 1, attempts=2)

    (fields,) = await dead(raw)
    rule = "RetryLater must be given milliseconds or a timedelta"
    assert fields[b"error"] == f"RetryLater: {rule}, got {delay!r}".encode()
    assert fields[b"attempt"] == b"2"


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\x81\xa1k\xd5\x09\x01\x02", id="an extension"),
        pytest.param(b"\x81\xa1k\xd6\xff\x00\x00\x00\x01", id="a timestamp"),
        pytest.param(b"\x81\xa1k\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", id="not a number"),
        pytest.param(b"\x81\xa1k\x82\x92\x01\x02\x01\xc0\x02", id="odd keys"),
        pytest.param(b"\x81\xa1k" + b"\x91" * 30 + b"\x90", id="deep"),
        pytest.param(b"\x81\xa7expires\xff", id="cut off"),
        pytest.param(b"\xc1", id="nothing at all"),
    ],
)
async def test_whatever_follows_an_envelope_a_failed_job_is_retried(
    queue, raw, running_worker, tail
):
    seen = []

    async def handler(job):
        seen.append(job.id)
        raise ValueError("no")

    await running_worker(handler, retry=AT_ONCE)
    await put(raw, envelope("odd", retry=[2, None]) + tail)
    good = await queue.add("good", 1, attempts=2)

    await dead(raw, 2)
    assert sorted(seen) == sorted(["odd", "odd", good.id, good.id])
