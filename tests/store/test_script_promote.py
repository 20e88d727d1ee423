"""promote_due.lua: due jobs move once, bad members step aside, nothing is half done."""

from __future__ import annotations

import pytest

from chasquimq.errors import DecodeError, StoreError
from chasquimq.store.inspect.queue import server_ms
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.stream_entry import encode_member, split_member

MIB = 1024 * 1024


@pytest.fixture
def promote(run, raw):
    async def call(page_max=256, bytes_max=MIB, events_max=0):
        return (await run_whole(run, raw, page_max, bytes_max, events_max))[:6]

    return call


async def run_whole(run, raw, *args):
    """The whole answer, with the server's time and when the next is due."""
    keys = [raw.keys.delayed, raw.keys.stream, raw.keys.dlq, raw.keys.dix, raw.keys.events]
    return await run("promote_due", keys, *args)


@pytest.mark.parametrize("left_ms", [None, 60_000])
async def test_a_promotion_tells_when_the_next_is_due(run, raw, delay, left_ms):
    before_ms = await server_ms(raw.connection)
    await delay(member("now"))
    expected_ms = -1 if left_ms is None else await delay(member("later"), left_ms)

    *_, now_ms, due_ms = await run_whole(run, raw, 256, MIB, 0)

    assert before_ms <= now_ms <= await server_ms(raw.connection)
    assert due_ms == expected_ms


@pytest.fixture
def delay(raw):
    """Put a member into the delayed set, due so many milliseconds from now."""

    async def put(member: bytes, due_in_ms: int = -1_000) -> int:
        due_ms = await server_ms(raw.connection) + due_in_ms
        await raw("ZADD", raw.keys.delayed, due_ms, member)
        return due_ms

    return put


def member(job_id: str = "job", name: str = "greet") -> bytes:
    return encode_member(name, envelope(job_id))


def envelope(job_id: str = "job") -> bytes:
    return encode_envelope(job_id, b"\x01", 1_700_000_000_000)


async def test_a_due_job_moves_to_the_stream_with_its_due_time(promote, delay, raw):
    due_ms = await delay(member())

    answer = await promote()

    ((_, fields),) = await raw.entries(raw.keys.stream)
    assert answer == [1, 0, 0, 0, [b"job"], 0]
    assert fields == {b"d": envelope(), b"n": b"greet", b"due": b"%d" % due_ms}
    assert await raw("EXISTS", raw.keys.delayed) == 0


async def test_a_job_without_a_name_moves_without_one(promote, delay, raw):
    await delay(member(name=""))

    await promote()

    ((_, fields),) = await raw.entries(raw.keys.stream)
    assert set(fields) == {b"d", b"due"}


async def test_a_job_that_is_not_due_stays(promote, delay, raw):
    await delay(member(), due_in_ms=60_000)

    assert await promote() == [0, 1, 0, 0, [], 0]
    assert await raw("EXISTS", raw.keys.stream) == 0


async def test_an_empty_queue_promotes_nothing_and_creates_nothing(promote, snapshot):
    assert await promote() == [0, 0, 0, 0, [], 0]
    assert await snapshot() == {}


async def test_jobs_move_in_the_order_they_fell_due(promote, delay):
    await delay(member("second"), due_in_ms=-2_000)
    await delay(member("first"), due_in_ms=-3_000)
    await delay(member("third"), due_in_ms=-1_000)

    assert (await promote())[4] == [b"first", b"second", b"third"]


async def test_a_page_is_a_maximum_and_the_lag_tells_that_more_is_due(promote, delay):
    for i in range(40):
        await delay(member(f"job-{i}"), due_in_ms=-5_000)

    moved, depth, lag_ms, bad, ids, _ = await promote(page_max=33)

    assert (moved, depth, bad, len(ids)) == (33, 7, 0, 33)
    assert lag_ms >= 5_000


async def test_a_page_ends_after_its_bytes(promote, delay):
    for i in range(40):
        await delay(encode_member("", encode_envelope(f"job-{i:02}", b"x" * 1_000, 1)))

    moved, depth, *_ = await promote(bytes_max=10_000)

    assert 10 <= moved <= 10 + 16
    assert depth == 40 - moved


async def test_the_second_promoter_finds_nothing_left(promote, delay, raw):
    await delay(member())
    await promote()

    assert (await promote())[0] == 0
    assert await raw("XLEN", raw.keys.stream) == 1


async def test_a_promoted_job_leaves_the_index_of_delayed_jobs(promote, delay, raw):
    await delay(member("a"))
    await raw("HSET", raw.keys.dix, "a", 1, "b", 2)

    await promote()

    assert await raw("HKEYS", raw.keys.dix) == [b"b"]


async def test_a_page_forgets_its_own_jobs_and_leaves_those_that_wait(promote, delay, raw):
    due_ms = [await delay(member(job_id)) for job_id in ("known", "moved", "broken", "own")]
    later_ms = await delay(member("waiting"), due_in_ms=60_000)
    await delay(member("waiting", name="forged"))
    await raw("HSET", raw.keys.dix, "known", due_ms[0], "waiting", later_ms)
    # Somebody gave it another time than the one that is known.
    await raw("HSET", raw.keys.dix, "moved", later_ms, "broken", "no number")

    answer = await promote()

    assert (answer[0], answer[4]) == (5, [b"own"])
    assert await raw("HKEYS", raw.keys.dix) == [b"waiting"]


@pytest.mark.parametrize("due", ["nan", "12 ", "inf", "-inf", "(12", "0x10", ""])
async def test_an_index_entry_that_is_no_time_goes_with_its_job(promote, delay, raw, due):
    await delay(member("known"))
    await delay(member("own"))
    await raw("HSET", raw.keys.dix, "known", due)

    answer = await promote()

    assert answer == [2, 0, 0, 0, [b"own"], 0]
    assert await raw("EXISTS", raw.keys.dix) == 0


@pytest.mark.parametrize("crowd", [200, 300])
async def test_an_index_entry_for_a_crowded_time_is_left_rather_than_all_looked_at(
    promote, delay, raw, crowd
):
    later_ms = await server_ms(raw.connection) + 60_000
    pairs = [part for at in range(crowd) for part in (later_ms, member(f"later-{at}"))]
    await raw("ZADD", raw.keys.delayed, *pairs)
    await delay(member("moved"))
    await raw("HSET", raw.keys.dix, "moved", later_ms)

    answer = await promote()

    assert (answer[0], answer[4]) == (1, [])
    assert await raw("HEXISTS", raw.keys.dix, "moved") == (crowd > 256)


@pytest.mark.parametrize("size", [1, 31, 32, 255, 256], ids=lambda size: f"{size} bytes")
async def test_ids_of_every_length_are_found_in_their_envelopes(promote, delay, size):
    await delay(member("i" * size))

    assert (await promote())[4] == [b"i" * size]


async def test_jobs_of_one_page_keep_their_own_names_ids_and_times(promote, delay, raw):
    jobs = [("a", "greet"), ("b", "greet"), ("bb", "greet"), ("c", "great"), ("d", ""), ("e", "")]
    due_ms = [await delay(member(*job), due_in_ms=i - 2_000) for i, job in enumerate(jobs)]

    answer = await promote()

    moved = [fields for _, fields in await raw.entries(raw.keys.stream)]
    assert answer[4] == [job_id.encode() for job_id, _ in jobs]
    assert [fields[b"d"] for fields in moved] == [envelope(job_id) for job_id, _ in jobs]
    assert [fields.get(b"n", b"").decode() for fields in moved] == [name for _, name in jobs]
    assert [int(fields[b"due"]) for fields in moved] == due_ms


async def test_events_tell_which_job_waits_now(promote, delay, raw):
    await delay(member("named"), due_in_ms=-2_000)
    await delay(member("nameless", name=""))

    await promote(events_max=100)

    (_, named), (_, nameless) = await raw.entries(raw.keys.events)
    assert named.pop(b"ts").isdigit()
    assert named == {b"e": b"waiting", b"id": b"named", b"n": b"greet"}
    assert set(nameless) == {b"e", b"id", b"ts"}


async def test_an_events_key_of_the_wrong_type_costs_no_job(promote, delay, raw):
    await raw("SET", raw.keys.events, "not a stream")
    await delay(member())

    assert (await promote(events_max=100))[0] == 1
    assert await raw("XLEN", raw.keys.stream) == 1


# poison

SHORT = [bytes([1] * size) for size in range(4)]
OVERLONG = [size.to_bytes(4, "little") + b"ab" for size in (3, 4, 255, 2**32 - 1)]
WHOLE = [size.to_bytes(4, "little") + b"abcd"[: max(size, 2)] for size in (0, 1, 2, 3, 4)]


@pytest.mark.parametrize("bad", SHORT + OVERLONG, ids=bytes.hex)
async def test_a_member_that_cannot_be_read_goes_to_the_dlq_with_its_bytes(
    promote, delay, raw, bad
):
    await delay(bad, due_in_ms=-2_000)
    await delay(member())

    moved, depth, _, bad_count, ids, _ = await promote()

    (fields,) = await raw.dlq()
    assert (moved, depth, bad_count, ids) == (1, 0, 1, [b"job"])
    assert (fields[b"d"], fields[b"reason"]) == (bad, b"malformed_delayed")
    assert fields[b"failed_at"].isdigit()


@pytest.mark.parametrize("raw_member", SHORT + OVERLONG + WHOLE, ids=bytes.hex)
async def test_script_and_python_agree_on_what_can_be_read(promote, delay, raw, raw_member):
    await delay(raw_member)

    moved, _, _, bad_count, *_ = await promote()

    assert (moved, bad_count) == ((1, 0) if is_readable(raw_member) else (0, 1))


async def test_an_id_that_is_no_text_moves_like_any_other(promote, delay, raw):
    await delay(encode_member("", b"\x94\xa2\xff\xfe\xc4\x00\x01\x00"))

    assert await promote() == [1, 0, 0, 0, [b"\xff\xfe"], 0]


@pytest.mark.parametrize("score", ["-inf", "0", "1.5"])
async def test_a_score_that_is_no_time_of_ours_is_simply_due(promote, raw, score):
    await raw("ZADD", raw.keys.delayed, score, member("a"), score, member("b"))

    moved, depth, lag_ms, *_ = await promote(page_max=1)

    assert (moved, depth) == (1, 1)
    assert lag_ms > 0


@pytest.mark.parametrize("key", ["stream", "dix"])
async def test_a_target_of_the_wrong_type_leaves_everything_as_it_was(
    promote, delay, raw, snapshot, key
):
    await delay(member())
    await delay(b"bad")
    await raw("SET", getattr(raw.keys, key), "something else")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await promote()

    assert await snapshot() == before


async def test_a_dlq_of_the_wrong_type_keeps_no_job_that_can_be_read(promote, delay, raw):
    await delay(member("one"), -2_000)
    await raw("SET", raw.keys.dlq, "no stream")

    assert (await promote())[:2] == [1, 0]

    await delay(member("two"), -2_000)
    await delay(b"bad")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await promote()
    assert await raw("XLEN", raw.keys.stream) == 2
    assert await raw("ZRANGE", raw.keys.delayed, 0, -1) == [b"bad"]


async def test_a_delayed_key_of_the_wrong_type_is_named(promote, raw):
    await raw("SET", raw.keys.delayed, "not a set")

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await promote()


def is_readable(raw_member: bytes) -> bool:
    try:
        split_member(raw_member)
    except DecodeError:
        return False
    return True
