"""The DLQ: every dead job can be seen, sent back or deleted, and nothing in it blocks the rest."""

from __future__ import annotations

import asyncio
import json
import pickle
import time

import pytest

from chasquimq import Queue, UnrecoverableError
from chasquimq.errors import SettingsError, StoreError
from chasquimq.wire.envelope import encode_envelope, split_envelope
from chasquimq.wire.stream_entry import encode_dlq
from support.waiting import eventually, patience
from wire.vectors import load
from wire.vectors import raw as unhex

VECTORS = load("dlq_and_retries")["dlq"]
GENERATION_1 = b"\x81\xaageneration\x01"
POISON = b"\xc1"
each_filter_of_the_second_burial = pytest.mark.parametrize(
    "wanted",
    [
        {"name": "b"},
        {"reason": "expired"},
        {"fingerprint": "f2"},
        {"name": "b", "reason": "expired"},
    ],
    ids=str,
)


def envelope(job_id: str, *, attempt: int = 3, extras: dict | None = None) -> bytes:
    return encode_envelope(job_id, b"\x81\xa1k\x01", 1_700_000_000_000, attempt, None, extras)


@pytest.fixture
def bury(raw):
    """Put entries into the DLQ as a worker does; answers their ids."""

    async def put(*bodies: bytes, reason="unrecoverable", at="*", **known) -> list[str]:
        rows = [encode_dlq(body, "5-1", reason, **known) for body in bodies]
        return [(await raw("XADD", raw.keys.dlq, at, *row)).decode() for row in rows]

    return put


@pytest.fixture
async def originals(raw):
    """The DLQ that a worker of the original left behind; answers its ids."""
    ids = []
    for case in VECTORS["entries"]:
        entry = {
            "d": unhex(case["d_hex"]),
            "n": bytes.fromhex(case["n_hex"] or ""),
            "source_id": case["source_id"],
            "reason": case["reason"],
            "detail": case["detail"],
        }
        row = [part for field in case["fields_in_order"] for part in (field, entry[field])]
        ids.append((await raw("XADD", raw.keys.dlq, "*", *row)).decode())
    return ids


async def stream(raw) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in await raw.entries(raw.keys.stream)]


async def replayed_ids(raw) -> list[str]:
    return [split_envelope(fields[b"d"])[0].id for fields in await stream(raw)]


async def dlq_ids(raw) -> list[str]:
    return [entry_id.decode() for entry_id, _ in await raw.entries(raw.keys.dlq)]


# ── peek ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_dead_job_shows_why_when_and_after_how_many_attempts(queue, running_worker):
    async def handler(job):
        raise ValueError("no card 4711")

    await running_worker(handler, max_attempts=2)
    job = await queue.add("charge", {"order": 7}, backoff=1)
    (letter,) = await eventually(queue.peek_dlq)

    assert letter["job_id"] == job.id
    assert letter["name"] == "charge"
    assert letter["reason"] == "retries_exhausted"
    assert letter["attempt"] == 2
    assert letter["error"] == "ValueError: no card 4711"
    assert len(letter["fingerprint"]) == 16
    assert abs(letter["failed_at_ms"] - time.time() * 1000) < 60_000
    assert split_envelope(letter["payload"])[0].id == job.id


async def test_the_entries_of_the_original_are_shown_as_it_shows_them(queue, originals):
    letters = await queue.peek_dlq()

    assert [
        (one["dlq_id"], one["source_id"], one["reason"], one["detail"], one["payload"], one["name"])
        for one in letters
    ] == [
        (
            dlq_id,
            case["source_id"],
            case["reason"],
            case["detail"],
            unhex(case["d_hex"]),
            bytes.fromhex(case["n_hex"] or "").decode(),
        )
        for dlq_id, case in zip(originals, VECTORS["entries"], strict=True)
    ]


async def test_what_the_original_does_not_write_is_told_as_far_as_it_is_known(queue, originals):
    letters = await queue.peek_dlq()

    assert [one["job_id"] for one in letters][6:9] == [None, "big", "ex"]
    assert {one["attempt"] for one in letters} == {None}
    assert {one["error"] for one in letters} == {None}
    assert {one["fingerprint"] for one in letters} == {None}
    assert [one["failed_at_ms"] for one in letters] == [int(i.split("-")[0]) for i in originals]


async def test_an_entry_that_cannot_be_decoded_has_its_bytes_and_no_job_id(queue, bury):
    await bury(POISON, reason="decode_failed", detail="not an envelope")

    (letter,) = await queue.peek_dlq()

    assert (letter["job_id"], letter["payload"]) == (None, POISON)
    assert letter["detail"] == "not an envelope"


async def test_an_entry_without_any_known_field_is_shown_too(queue, raw):
    await raw("XADD", raw.keys.dlq, "*", "x", b"\xff")

    (letter,) = await queue.peek_dlq()

    assert (letter["payload"], letter["reason"], letter["source_id"]) == (b"", "", "")


async def test_the_oldest_entries_come_first_and_no_more_than_asked_for(queue, bury):
    ids = await bury(*(envelope(f"j{at}") for at in range(30)))

    assert [one["dlq_id"] for one in await queue.peek_dlq()] == ids[:20]
    assert [one["dlq_id"] for one in await queue.peek_dlq(3)] == ids[:3]
    assert await queue.peek_dlq(0) == []


async def test_a_peek_goes_on_behind_the_last_entry_that_was_seen(queue, bury):
    ids = await bury(*(envelope(f"j{at}") for at in range(5)))
    first = await queue.peek_dlq(2)

    rest = await queue.peek_dlq(after=first[-1]["dlq_id"])

    assert [one["dlq_id"] for one in rest] == ids[2:]


@each_filter_of_the_second_burial
async def test_a_peek_shows_only_what_matches_every_filter(queue, bury, wanted):
    await bury(envelope("1"), name="a", fingerprint="f1")
    await bury(envelope("2"), name="b", fingerprint="f2", reason="expired")

    assert [one["job_id"] for one in await queue.peek_dlq(**wanted)] == ["2"]


async def test_filters_that_contradict_each_other_match_nothing(queue, bury):
    await bury(envelope("1"), name="a", reason="expired")

    assert await queue.peek_dlq(name="b", reason="expired") == []


async def test_an_empty_name_asks_for_jobs_without_a_name(queue, bury):
    await bury(envelope("1"), name="a")
    await bury(envelope("2"))

    assert [one["job_id"] for one in await queue.peek_dlq(name="")] == ["2"]


async def test_a_match_is_found_behind_a_thousand_others(queue, bury):
    await bury(*[envelope("other")] * 1_200)
    (wanted,) = await bury(envelope("wanted"), name="rare")

    (letter,) = await queue.peek_dlq(name="rare")

    assert letter["dlq_id"] == wanted


async def test_a_peek_moves_nothing(queue, bury, raw):
    await bury(envelope("1"), POISON)
    before = await raw("DUMP", raw.keys.dlq)

    await queue.peek_dlq(name="other")

    assert await raw("DUMP", raw.keys.dlq) == before


async def test_an_empty_dlq_has_nothing_to_show_replay_or_purge(queue):
    assert await queue.peek_dlq() == []
    assert await queue.replay_dlq() == 0
    assert await queue.purge_dlq(all=True) == 0


# ── replay ────────────────────────────────────────────────────────────────────────────────────


async def test_a_replayed_job_runs_again_from_its_first_attempt(queue, running_worker):
    seen = []

    async def handler(job):
        seen.append((job.id, job.name, job.data, job.attempt))
        if len(seen) < 3:
            raise ValueError("not yet")

    await running_worker(handler, max_attempts=2)
    job = await queue.add("charge", {"order": 7}, backoff=1)
    await eventually(queue.peek_dlq)

    assert await queue.replay_dlq() == 1

    await eventually(lambda: len(seen) == 3)
    assert seen[-1] == (job.id, "charge", {"order": 7}, 0)
    assert await queue.peek_dlq() == []


async def test_a_replay_writes_the_bytes_of_the_original_and_then_the_generation(
    queue, originals, raw
):
    replayed = await queue.replay_dlq(100)

    expected = VECTORS["replay"]["stream_after"]
    assert replayed == VECTORS["replay"]["returned"]
    assert [fields[b"d"] for fields in await stream(raw)] == [
        unhex(one["d_hex"]) + GENERATION_1 for one in expected
    ]
    assert [fields.get(b"n", b"").hex() for fields in await stream(raw)] == [
        one["n_hex"] or "" for one in expected
    ]


async def test_a_replay_leaves_what_the_original_leaves(queue, originals, raw):
    replayed = await queue.replay_dlq(100)

    left = VECTORS["replay"]["left_in_dlq_reasons"]
    assert [one["reason"] for one in await queue.peek_dlq()] == left
    assert (replayed.skipped, replayed.matched) == (len(left), len(VECTORS["entries"]))


async def test_each_replay_is_a_generation_of_its_own_and_keeps_the_other_extras(queue, bury, raw):
    extras = {"timeout_ms": 500, "generation": 1, "newer": [1], "unknown_since_ms": 7}
    await bury(envelope("1", extras=extras))

    await queue.replay_dlq()

    ((fields),) = await stream(raw)
    again, kept = split_envelope(fields[b"d"])
    assert (again.id, again.attempt, again.created_at_ms) == ("1", 0, 1_700_000_000_000)
    assert kept == {"timeout_ms": 500, "generation": 2, "newer": [1]}


@pytest.mark.parametrize(
    ("found", "after"), [(-5, 1), (2**64 - 1, 2**32 - 1), ("x", 1), (True, 1)], ids=str
)
async def test_a_generation_that_makes_no_sense_blocks_no_replay(queue, bury, raw, found, after):
    await bury(envelope("1", extras={"generation": found}))

    assert await queue.replay_dlq() == 1

    ((fields),) = await stream(raw)
    assert split_envelope(fields[b"d"])[1] == {"generation": after}


async def test_ten_jobs_behind_a_hundred_undecodable_entries_are_replayed(queue, bury, raw):
    poison = await bury(*[POISON] * 100)
    await bury(*(envelope(f"j{at}") for at in range(15)))

    replayed = await queue.replay_dlq(10)

    assert (replayed, replayed.replayed, replayed.skipped, replayed.matched) == (10, 10, 100, 110)
    assert await replayed_ids(raw) == [f"j{at}" for at in range(10)]
    assert (await dlq_ids(raw))[:100] == poison


async def test_the_oldest_jobs_are_replayed_first_up_to_the_limit(queue, bury, raw):
    ids = await bury(*(envelope(f"j{at}") for at in range(5)))

    replayed = await queue.replay_dlq(2)

    assert replayed.ids == ids[:2]
    assert await replayed_ids(raw) == ["j0", "j1"]
    assert await dlq_ids(raw) == ids[2:]


async def test_more_jobs_than_one_call_may_carry_are_replayed_in_order(queue, bury, raw):
    await bury(*(envelope(f"j{at}") for at in range(730)))

    assert await queue.replay_dlq(1_000) == 730
    assert await replayed_ids(raw) == [f"j{at}" for at in range(730)]


async def test_jobs_heavier_than_a_call_may_be_are_replayed(queue, bury, raw):
    heavy = encode_envelope("heavy", b"x" * 700_000, 1, 1)
    giant = encode_envelope("giant", b"x" * 2_000_000, 1, 1)
    await bury(heavy, giant, envelope("light"), heavy, giant)

    assert await queue.replay_dlq() == 5
    assert await replayed_ids(raw) == ["heavy", "giant", "light", "heavy", "giant"]


@each_filter_of_the_second_burial
async def test_a_replay_moves_only_what_matches_every_filter(queue, bury, raw, wanted):
    await bury(envelope("1"), POISON, name="a", fingerprint="f1")
    await bury(envelope("2"), name="b", fingerprint="f2", reason="expired")

    replayed = await queue.replay_dlq(**wanted)

    assert (replayed, replayed.matched, replayed.skipped) == (1, 1, 0)
    assert await replayed_ids(raw) == ["2"]


async def test_entries_are_replayed_by_their_ids_in_that_order(queue, bury, raw):
    ids = await bury(*(envelope(f"j{at}") for at in range(4)))

    replayed = await queue.replay_dlq(ids=[ids[2], ids[0], ids[2], "1-1"])

    assert (replayed, replayed.ids, replayed.matched) == (2, [ids[2], ids[0]], 2)
    assert await replayed_ids(raw) == ["j2", "j0"]


async def test_ids_and_filters_must_both_match(queue, bury):
    (first,) = await bury(envelope("1"), name="a")
    (second,) = await bury(envelope("2"), name="b")

    assert (await queue.replay_dlq(ids=[first, second], name="b")).ids == [second]


async def test_no_ids_replay_and_purge_nothing(queue, bury):
    await bury(envelope("1"))

    assert await queue.replay_dlq(ids=[]) == 0
    assert await queue.purge_dlq(ids=[]) == 0


async def test_more_ids_than_the_limit_are_refused_instead_of_cut(queue, bury):
    ids = await bury(envelope("1"), envelope("2"))

    with pytest.raises(SettingsError, match="number of ids, 2"):
        await queue.replay_dlq(1, ids=ids)


async def test_a_dry_run_tells_what_would_be_replayed_and_moves_nothing(queue, bury, raw):
    ids = await bury(envelope("1"), POISON, envelope("2"), envelope("3"))
    before = await raw("DUMP", raw.keys.dlq)

    dry = await queue.replay_dlq(2, dry_run=True)

    assert (dry, dry.ids, dry.skipped, dry.matched) == (0, [ids[0], ids[2]], 1, 3)
    assert await raw("DUMP", raw.keys.dlq) == before
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_jobs_that_die_again_during_a_replay_are_not_replayed_twice(
    queue, bury, running_worker
):
    ran = []

    async def handler(job):
        ran.append(job.id)
        raise UnrecoverableError("still bad")

    await running_worker(handler)
    # More than one page, so that the second is read when the first has died again.
    wanted = [f"j{at}" for at in range(120)]
    await bury(*map(envelope, wanted))

    replayed = await queue.replay_dlq(1_000, max_rate=400)

    assert replayed == replayed.matched == 120
    await eventually(lambda: len(ran) >= 120)
    assert sorted(ran) == sorted(wanted)


async def test_two_replays_at_once_replay_each_job_once(queue, url, queue_name, bury, raw):
    wanted = [f"j{at}" for at in range(400)]
    await bury(*map(envelope, wanted))

    async with Queue(queue_name, redis_url=url) as other:
        counts = await asyncio.gather(queue.replay_dlq(1_000), other.replay_dlq(1_000))

    assert sum(counts) == 400
    assert sorted(await replayed_ids(raw)) == sorted(wanted)


async def test_a_replay_keeps_to_its_rate_and_does_not_dawdle(queue, bury):
    await bury(*(envelope(f"j{at}") for at in range(40)))
    started_s = time.monotonic()

    assert await queue.replay_dlq(max_rate=100) == 40

    # Four bursts of ten, a tenth of a second apart; nothing waits after the last.
    assert 0.3 <= time.monotonic() - started_s < 1.5 * patience()


async def test_a_rate_below_one_job_per_burst_sends_one_at_a_time(queue, bury, raw):
    await bury(*(envelope(f"j{at}") for at in range(3)))

    replay = asyncio.create_task(queue.replay_dlq(max_rate=4))
    await eventually(lambda: raw("XLEN", raw.keys.stream))

    assert await raw("XLEN", raw.keys.stream) == 1
    assert await replay == 3


async def test_a_replay_is_not_held_back_by_the_cap_on_adds(url, queue_name, bury):
    await bury(*(envelope(f"j{at}") for at in range(3)))

    async with Queue(queue_name, redis_url=url, max_stream_len=1) as capped:
        assert await capped.replay_dlq() == 3


async def test_the_end_of_a_replayed_job_is_awaited_anew(queue, running_worker):
    async def handler(job):
        if len(ran) == 0:
            ran.append(job.id)
            raise UnrecoverableError("first time")
        return "second time"

    ran = []
    await running_worker(handler, store_results=True)
    job = await queue.add("charge", 1)
    await eventually(queue.peek_dlq)

    await queue.replay_dlq()

    assert await job.wait_for_result(timeout=5) == "second time"


async def test_the_answer_of_a_replay_is_a_plain_number_with_more_to_tell(queue, bury):
    await bury(envelope("1"), envelope("2"))

    replayed = await queue.replay_dlq()
    copy = pickle.loads(pickle.dumps(replayed))

    assert (replayed + 1, f"{replayed}", json.dumps({"n": replayed})) == (3, "2", '{"n": 2}')
    assert (copy, copy.ids) == (replayed, replayed.ids)


# ── purge ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_purge_without_a_filter_is_refused(queue, bury, raw):
    await bury(envelope("1"))

    with pytest.raises(SettingsError, match="all=True"):
        await queue.purge_dlq()

    assert await raw("XLEN", raw.keys.dlq) == 1


@pytest.mark.parametrize("wanted", [{"name": "a"}, {"ids": ["1-1"]}, {"older_than_ms": 0}], ids=str)
async def test_a_purge_of_all_with_a_filter_is_refused(queue, bury, raw, wanted):
    await bury(envelope("1"))

    with pytest.raises(SettingsError, match="without filters"):
        await queue.purge_dlq(all=True, **wanted)

    assert await raw("XLEN", raw.keys.dlq) == 1


async def test_a_purge_of_all_leaves_nothing(queue, bury, raw):
    await bury(*[envelope("1"), POISON] * 650)

    assert await queue.purge_dlq(all=True) == 1_300
    assert await raw("XLEN", raw.keys.dlq) == 0


@each_filter_of_the_second_burial
async def test_a_purge_deletes_only_what_matches_every_filter(queue, bury, raw, wanted):
    kept = await bury(envelope("1"), POISON, name="a", fingerprint="f1")
    await bury(envelope("2"), POISON, name="b", fingerprint="f2", reason="expired")

    assert await queue.purge_dlq(**wanted) == 2
    assert await dlq_ids(raw) == kept


async def test_entries_are_purged_by_their_ids(queue, bury, raw):
    ids = await bury(*(envelope(f"j{at}") for at in range(4)))

    assert await queue.purge_dlq(ids=[ids[1], ids[3], "1-1"]) == 2
    assert await dlq_ids(raw) == [ids[0], ids[2]]


async def test_a_purge_by_age_leaves_the_young(queue, bury, raw):
    now_ms = time.time_ns() // 1_000_000
    (old,) = await bury(envelope("old"), at=f"{now_ms - 3_600_000}-0")
    (young,) = await bury(envelope("young"))

    assert await queue.purge_dlq(older_than_ms=60_000, ids=[old, young]) == 1
    assert await queue.purge_dlq(older_than_ms=60_000) == 0
    assert await dlq_ids(raw) == [young]


async def test_an_age_before_all_time_matches_nothing(queue, bury):
    await bury(envelope("1"))

    assert await queue.purge_dlq(older_than_ms=2**60) == 0


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("peek_dlq", {"limit": -1}),
        ("peek_dlq", {"limit": 1.5}),
        ("peek_dlq", {"limit": True}),
        ("peek_dlq", {"after": "last"}),
        ("peek_dlq", {"after": "1"}),
        ("peek_dlq", {"after": "1-1\n"}),
        ("peek_dlq", {"after": f"{2**64}-0"}),
        ("replay_dlq", {"limit": -1}),
        ("replay_dlq", {"ids": "1-1"}),
        ("replay_dlq", {"ids": ["1"]}),
        ("replay_dlq", {"ids": [b"1-1"]}),
        ("replay_dlq", {"max_rate": 0}),
        ("replay_dlq", {"max_rate": -1}),
        ("replay_dlq", {"max_rate": float("nan")}),
        ("replay_dlq", {"max_rate": float("inf")}),
        ("replay_dlq", {"max_rate": "10"}),
        ("purge_dlq", {"ids": ["x-1"]}),
        ("purge_dlq", {"older_than_ms": -1}),
        ("purge_dlq", {"older_than_ms": 0.5}),
    ],
    ids=str,
)
async def test_arguments_that_make_no_sense_are_refused(queue, bury, raw, method, options):
    await bury(envelope("1"))

    with pytest.raises(SettingsError):
        await getattr(queue, method)(**options)

    assert await raw("XLEN", raw.keys.dlq) == 1


async def test_a_closed_queue_refuses_to_touch_its_dead_letters(queue):
    await queue.close()

    with pytest.raises(StoreError, match="closed"):
        await queue.peek_dlq()
    with pytest.raises(StoreError, match="closed"):
        await queue.replay_dlq()
    with pytest.raises(StoreError, match="closed"):
        await queue.purge_dlq(all=True)
