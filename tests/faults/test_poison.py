"""Bad bytes and keys of the wrong type: each costs its own item, says so, and stops nothing."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from statistics import median

import pytest

from chasquimq import UnrecoverableError
from chasquimq.engine import supervisor
from chasquimq.errors import DecodeError, StoreError
from chasquimq.store.inspect.queue import server_ms
from chasquimq.wire.stream_entry import split_member
from support.waiting import eventually, patience
from wire.vectors import load

LATE_MS = 250
CALLS_PER_S_MAX = 60
# What the original refused, with the reason it gave; its worker had these limits.
REFUSED = [
    entry
    for entry in load("dlq_and_retries")["dlq"]["entries"]
    if (entry["made_by"] or "").startswith("raw XADD")
]
LIMITS = {"max_attempts": 2, "max_payload_bytes": 500}
# A server whose commands are counted for this test alone.
pytestmark = pytest.mark.own_server


def fields_of(entry):
    """The stream entry that the original was given, flat."""
    pairs = json.loads(re.search(r"fields (\[.*\])$", entry["made_by"]).group(1))
    return [part for name, value in pairs for part in (name.encode(), bytes.fromhex(value))]


async def is_done(queue):
    return (await queue.counts()).backlog == 0


# ── delayed members ──────────────────────────────────────────────────────────────────────────

SHORT = [filler * size for size in range(1, 9) for filler in (b"\x00", b"\x01", b"\xff")]
OVERLONG = [size.to_bytes(4, "little") + b"ab" for size in (3, 4, 255, 65_536, 2**31, 2**32 - 1)]
EMPTY = [b"", b"\x01\x00\x00\x00a", b"\x02\x00\x00\x00\xff\xfe", b"\x04\x00\x00\x00name"]
BAD_MEMBERS = sorted({*SHORT, *OVERLONG, *EMPTY})


def kept(member):
    """Reason, bytes and name under which a bad member should lie in the DLQ."""
    try:
        name, envelope = split_member(member)
    except DecodeError:
        return b"malformed_delayed", member, b""
    return b"decode_failed", envelope, name.encode()


async def test_members_that_cannot_be_read_go_to_the_dlq_and_the_others_run_on_time(
    queue, raw, running_worker, kind
):
    late_ms = []

    async def handler(job):
        late_ms.append(await server_ms(raw.connection) - job.delivery.due_ms)

    due_ms = await server_ms(raw.connection) + 300
    for at, member in enumerate(BAD_MEMBERS):
        await raw("ZADD", raw.keys.delayed, due_ms + at * 5, member)
    await queue.add_bulk([{"name": "good", "data": 0, "delay_ms": 200 + at} for at in range(200)])
    running = await running_worker(handler)

    await eventually(lambda: is_done(queue))
    found = await raw.dlq()
    print(
        f"{kind.label}: {len(BAD_MEMBERS)} bad members, {len(found)} in the DLQ, "
        f"{len(late_ms)} good jobs late by at most {max(late_ms)} ms"
    )
    assert Counter((one[b"reason"], one[b"d"], one.get(b"n", b"")) for one in found) == Counter(
        kept(member) for member in BAD_MEMBERS
    )
    assert len(late_ms) == 200
    # A loop that bad members kill comes back after seconds; a busy machine hinders a few jobs.
    assert 0 <= min(late_ms) <= median(late_ms) <= LATE_MS * patience()
    assert max(late_ms) <= 4 * LATE_MS * patience()
    assert running.worker.health().is_ok


# ── every key at once ────────────────────────────────────────────────────────────────────────


async def test_bad_bytes_in_every_key_cost_no_good_job(queue, raw, running_worker, kind):
    runs, waits_ms = Counter(), []

    async def handler(job):
        runs[job.id] += 1
        waits_ms.append((time.monotonic() - job.data) * 1000)
        return "done"

    await poison(raw, "before")
    running = await running_worker(handler, store_results=True, **LIMITS)
    await eventually(lambda: raw("XLEN", raw.keys.dlq), what="the first burial")
    ids = [f"job-{at}" for at in range(200)]
    for at, job_id in enumerate(ids):
        if at % 40 == 0:
            await poison(raw, f"during {at}")
        await raw("RPUSH", raw.keys.result(job_id), "a list")
        await raw("RPUSH", raw.keys.outcome(job_id), "a list")
        options = {"delay_ms": 50} if at % 4 == 0 else {}
        await queue.add("good", time.monotonic(), job_id=job_id, **options)

    await eventually(lambda: is_done(queue))
    reasons = Counter(fields.get(b"reason", b"") for fields in await raw.dlq())
    print(
        f"{kind.label}: {runs.total()} good jobs, {reasons.total()} bad ones in the DLQ, "
        f"longest wait of a good job {max(waits_ms):.0f} ms"
    )
    assert runs == dict.fromkeys(ids, 1)
    assert reasons == expected_reasons(times=6)
    assert await queue.get_job_result_bulk(ids) == ["done"] * 200
    assert running.worker.health().is_ok
    assert len(await queue.peek_dlq(1_000)) == reasons.total()


async def poison(raw, mark):
    """One of each bad item in every place where jobs lie."""
    for entry in REFUSED:
        await raw("XADD", raw.keys.stream, "*", *fields_of(entry))
    for member in (b"", b"\x01", b"\xff" * 8):
        await raw("ZADD", raw.keys.delayed, 1, member)
        await eventually(lambda: has_left(raw, mark))
    await raw("XADD", raw.keys.dlq, "*", "x", mark)
    await raw("SET", raw.keys.events, mark)
    await raw("SET", raw.keys.history, mark)
    await raw("HSET", raw.keys.dix, mark, "no number")


async def has_left(raw, mark):
    """A member is there once, so the next of its kind waits until it is gone."""
    return mark == "before" or not await raw("ZCOUNT", raw.keys.delayed, 1, 1)


def expected_reasons(times):
    reasons = Counter(entry["reason"].encode() for entry in REFUSED)
    reasons.update({b"malformed_delayed": 3, b"": 1})
    return Counter({reason: count * times for reason, count in reasons.items()})


# ── keys of the wrong type ───────────────────────────────────────────────────────────────────

HURT = {
    "delayed": {"promoter", "retrier"},
    "dix": {"promoter", "retrier"},
    "dlq": {"burier"},
    "promoter_lock": {"promoter"},
}


@pytest.fixture
def impatient(monkeypatch):
    """Health tells of trouble after half a second instead of five, and of its end as soon."""
    monkeypatch.setattr(supervisor, "_DOWN_S", 0.5)
    monkeypatch.setattr(supervisor, "_UP_S", 0.3)


async def fate(job):
    """What a job's data ask for."""
    if job.data == "fail":
        raise ValueError("always")
    if job.data == "bury":
        raise UnrecoverableError("never")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("key", HURT)
async def test_a_key_of_the_wrong_type_is_named_and_holds_up_only_what_needs_it(
    queue, raw, running_worker, kind, key
):
    running = await running_worker(fate)
    worker, name = running.worker, getattr(raw.keys, key)
    later = await queue.add("later", "ok", delay_ms=300)
    cure = await hurt(raw, name)

    await queue.add_bulk([{"name": "good", "data": "ok"} for _ in range(100)])
    await queue.add("fails", "fail", attempts=2, backoff=1)
    await queue.add("dies", "bury")
    await eventually(lambda: worker.health().completed >= 100)
    await eventually(lambda: HURT[key] <= set(worker.health().loops_down), within_s=5)
    down, calls_per_s = worker.health().loops_down, await load_of(raw)

    await cure()
    cured_s = time.monotonic()
    await eventually(lambda: is_done(queue), what=f"an empty queue without {later.id}")
    await eventually(lambda: worker.health().is_ok)
    print(
        f"{kind.label}, {key}: down {sorted(down)}, {calls_per_s:.0f} calls/s, "
        f"healthy {time.monotonic() - cured_s:.2f} s after the cure"
    )
    assert set(down) == HURT[key]
    assert all("WRONGTYPE" in error for error in down.values())
    assert calls_per_s < CALLS_PER_S_MAX
    assert worker.health().completed == 101
    assert {one[b"reason"] for one in await raw.dlq()} == {b"unrecoverable", b"retries_exhausted"}


async def hurt(raw, name):
    """Put a list where it does not belong; the answer puts back what was there."""
    had = await raw("EXISTS", name)
    if had:
        await raw("RENAME", name, f"{name}:kept")
    await raw("RPUSH", name, "not what it should be")
    return lambda: raw("RENAME", f"{name}:kept", name) if had else raw("DEL", name)


@pytest.mark.usefixtures("impatient")
async def test_a_stream_of_the_wrong_type_is_named_and_work_begins_again_when_it_is_gone(
    queue, raw, running_worker, kind
):
    running = await running_worker(fate)
    worker = running.worker
    await queue.add("good", "ok")
    await eventually(lambda: worker.health().completed == 1)

    await raw("DEL", raw.keys.stream)
    await raw("SET", raw.keys.stream, "not a stream")
    await eventually(lambda: {"reader", "promoter"} <= set(worker.health().loops_down))
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await queue.add("good", "ok")
    down, calls_per_s = worker.health().loops_down, await load_of(raw)

    await raw("DEL", raw.keys.stream)
    cured_s = time.monotonic()
    await queue.add("good", "ok")
    await eventually(lambda: worker.health().completed == 2)
    ran_s = time.monotonic() - cured_s
    await eventually(lambda: worker.health().is_ok)
    print(
        f"{kind.label}, stream: down {sorted(down)}, {calls_per_s:.0f} calls/s, "
        f"ran {ran_s:.2f} s after the cure"
    )
    assert all("WRONGTYPE" in error for error in down.values())
    assert calls_per_s < CALLS_PER_S_MAX
    assert ran_s <= 2 * patience()


async def load_of(raw, seconds=0.5):
    """How many calls of workers the server sees in a second."""
    before = await _calls(raw)
    await asyncio.sleep(seconds)
    return (await _calls(raw) - before) / seconds


async def _calls(raw):
    text = (await raw("INFO", "commandstats")).decode()
    found = re.findall(r"cmdstat_(?:eval|evalsha|xreadgroup):calls=(\d+)", text)
    return sum(map(int, found))
