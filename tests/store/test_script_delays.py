"""schedule.lua and cancel.lua: jobs for later, by the server's clock, and their way back."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError
from chasquimq.store.inspect.queue import server_ms
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.stream_entry import encode_member

HOUR_MS = 3_600_000
TTL_S = 120


def envelope(job_id: str) -> bytes:
    return encode_envelope(job_id, b"\x01", 1_700_000_000_000)


def job(job_id: str, ms: object = HOUR_MS, how: str = "in", *, digest: str = "", name: str = "n"):
    return (envelope(job_id), name, digest, job_id, ms, how)


@pytest.fixture
def schedule(run, raw):
    async def call(*jobs, token="t1", unique_ms=60_000, cap=()):
        k = raw.keys
        keys = [k.delayed, k.dix, k.stream, k.token(token)]
        for _, _, digest, job_id, _, _ in jobs:
            keys += (k.uniq(job_id), k.dlid(job_id), k.didx(job_id)) if digest else ()
        return await run(
            "schedule", keys, TTL_S, unique_ms, *(part for one in jobs for part in one), *cap
        )

    return call


@pytest.fixture
def cancel(run, raw):
    async def call(*job_ids, token="c1"):
        k = raw.keys
        keys = [k.delayed, k.dix, k.token(token)]
        for job_id in job_ids:
            keys += (k.didx(job_id), k.dlid(job_id), k.uniq(job_id))
        return await run("cancel", keys, TTL_S, *job_ids)

    return call


async def test_a_wait_begins_at_the_servers_own_time(schedule, raw):
    before_ms = await server_ms(raw.connection)

    assert await schedule(job("a")) == [1]

    after_ms = await server_ms(raw.connection)
    member, due_ms = await raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES")
    assert member == encode_member("n", envelope("a"))
    assert before_ms <= int(due_ms) - HOUR_MS <= after_ms
    assert await raw("HGET", raw.keys.dix, "a") == due_ms


async def test_an_instant_is_taken_as_it_is(schedule, raw):
    due_ms = await server_ms(raw.connection) + HOUR_MS

    assert await schedule(job("a", due_ms, "at")) == [1]
    assert await raw("HGET", raw.keys.dix, "a") == b"%d" % due_ms


async def test_an_instant_that_has_passed_is_ready_at_once(schedule, raw):
    marks = await schedule(job("a", 1_000, "at"), job("b", 1_000, "at", name=""))

    assert marks == [1, 1]
    assert [row for _, row in await raw.entries(raw.keys.stream)] == [
        {b"d": envelope("a"), b"n": b"n"},
        {b"d": envelope("b")},
    ]
    assert await raw("EXISTS", raw.keys.delayed, raw.keys.dix) == 0


@pytest.mark.parametrize("digest", ["", "d"], ids=["fresh id", "own id"])
async def test_an_instant_that_has_passed_must_fit_under_the_cap(schedule, raw, snapshot, digest):
    await raw("XADD", raw.keys.stream, "*", "d", envelope("before"))
    before = await snapshot()

    answer = await schedule(job("a"), job("b", 1_000, "at", digest=digest), cap=(1,))

    assert answer == b"full"
    assert await snapshot() == before


async def test_what_waits_or_is_there_already_needs_no_room_under_the_cap(schedule, raw):
    await schedule(job("b", 1_000, "at", digest="d"), token="t0")

    marks = await schedule(job("a"), job("b", 1_000, "at", digest="d"), cap=(1,))

    assert marks == [1, 0]
    assert (await raw("XLEN", raw.keys.stream), await raw("ZCARD", raw.keys.delayed)) == (1, 1)


async def test_an_instant_that_has_passed_takes_the_last_room_under_the_cap(schedule, raw):
    assert await schedule(job("a", 1_000, "at"), job("b"), cap=(1,)) == [1, 1]
    assert await raw("XLEN", raw.keys.stream) == 1


@pytest.mark.parametrize("cap", ["", "-1", "many", "nan"])
async def test_a_cap_that_is_no_count_is_refused(schedule, snapshot, cap):
    with pytest.raises(StoreError, match="stream_len_max must be"):
        await schedule(job("a"), cap=(cap,))

    assert await snapshot() == {}


async def test_a_resent_schedule_answers_the_same_and_adds_nothing(schedule, raw):
    await schedule(job("own", digest="d1"), token="t0")
    jobs = [job("a"), job("own", digest="d1"), job("own", digest="d2")]

    first, again = await schedule(*jobs), await schedule(*jobs)

    assert first == again == [1, 0, 2]
    assert await raw("ZCARD", raw.keys.delayed) == 2


async def test_an_id_of_ones_own_is_marked_for_the_window_and_the_wait(schedule, raw):
    await schedule(job("own", digest="d"), unique_ms=60_000)

    k = raw.keys
    assert 55_000 <= await raw("PTTL", k.uniq("own")) <= 60_000
    assert await raw("GET", k.didx("own")) == encode_member("n", envelope("own"))
    assert 3_600 + 60 - 5 <= await raw("TTL", k.dlid("own")) <= 3_600 + 60
    # The index outlives the window, so that a job which is promoted late can be cancelled.
    assert 2 * 3_600 - 5 <= await raw("TTL", k.didx("own")) <= 2 * 3_600


async def test_a_marker_of_the_other_implementation_counts(schedule, raw):
    await raw("SET", raw.keys.dlid("own"), "1")

    assert await schedule(job("own", digest="d")) == [0]
    assert await raw("EXISTS", raw.keys.delayed) == 0


async def test_an_id_twice_in_one_schedule_is_one_job(schedule, raw):
    marks = await schedule(job("x", digest="a"), job("x", digest="a"), job("x", digest="b"))

    assert marks == [1, 0, 2]
    assert await raw("ZCARD", raw.keys.delayed) == 1


@pytest.mark.parametrize("ms", ["soon", "", "nan", "inf", "-1", "1e300"])
async def test_a_wait_that_is_no_time_is_refused_before_anything_is_written(schedule, snapshot, ms):
    with pytest.raises(StoreError, match="ms must be"):
        await schedule(job("a"), job("b", ms))

    assert await snapshot() == {}


@pytest.mark.parametrize("unique_ms", ["0", "-1", "soon", "nan"])
async def test_a_window_that_is_no_time_is_refused_before_anything_is_written(
    schedule, snapshot, unique_ms
):
    with pytest.raises(StoreError):
        await schedule(job("a"), job("b", digest="d"), unique_ms=unique_ms)

    assert await snapshot() == {}


async def test_jobs_that_do_not_come_in_sixes_are_refused(schedule):
    with pytest.raises(StoreError, match="sixes"):
        await schedule()


@pytest.mark.parametrize("key", ["delayed", "dix", "stream"])
async def test_a_target_of_the_wrong_type_leaves_everything_as_it_was(schedule, raw, snapshot, key):
    await raw("SET", getattr(raw.keys, key), "something else")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await schedule(job("a", digest="d"), job("b", 1, "at"))

    assert await snapshot() == before


async def test_a_marker_of_the_wrong_type_leaves_everything_as_it_was(schedule, raw, snapshot):
    await raw("RPUSH", raw.keys.uniq("b"), "not a marker")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await schedule(job("a", digest="d"), job("b", digest="d"))

    assert await snapshot() == before


# cancel


@pytest.mark.parametrize("digest", ["", "d"], ids=["fresh id", "own id"])
async def test_a_cancelled_job_leaves_no_key_behind(schedule, cancel, raw, snapshot, digest):
    await schedule(job("a", digest=digest))

    assert await cancel("a") == [1]

    await raw("DEL", raw.keys.token("t1"), raw.keys.token("c1"))
    assert await snapshot() == {}


async def test_an_unknown_job_cannot_be_cancelled(cancel):
    assert await cancel("nobody") == [0]


async def test_the_second_cancel_finds_nothing(schedule, cancel):
    await schedule(job("a"))
    await cancel("a")

    assert await cancel("a", token="c2") == [0]


async def test_a_resent_cancel_answers_what_the_first_send_did(schedule, cancel):
    await schedule(job("a"))

    assert await cancel("a", "b") == await cancel("a", "b") == [1, 0]


@pytest.mark.parametrize("others", [["job-1", "job-"], ["ob-", "xjob"]], ids=["longer", "shorter"])
async def test_jobs_due_at_the_same_time_are_told_apart(schedule, cancel, raw, others):
    due_ms = await server_ms(raw.connection) + HOUR_MS
    await schedule(*(job(job_id, due_ms, "at") for job_id in [*others, "job"]))

    assert await cancel("job") == [1]
    assert sorted(await raw("HKEYS", raw.keys.dix)) == sorted(other.encode() for other in others)


@pytest.mark.parametrize("size", [1, 31, 32, 255, 256], ids=lambda size: f"{size} bytes")
async def test_ids_of_every_length_are_found(schedule, cancel, size):
    await schedule(job("i" * size), job("j" * size))

    assert await cancel("i" * size) == [1]


async def test_a_job_that_was_promoted_meanwhile_is_not_cancelled(schedule, cancel, raw):
    await schedule(job("a", digest="d"))
    await raw("DEL", raw.keys.delayed)

    assert await cancel("a") == [0]


async def test_members_that_cannot_be_read_are_no_obstacle(schedule, cancel, raw):
    due_ms = await server_ms(raw.connection) + HOUR_MS
    for bad in (b"", b"\x01", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\0\x94"):
        await raw("ZADD", raw.keys.delayed, due_ms, bad)
    await schedule(job("a", due_ms, "at"))

    assert await cancel("a") == [1]
    assert await raw("ZCARD", raw.keys.delayed) == 5


@pytest.mark.parametrize("key", ["delayed", "dix"])
async def test_a_cancel_on_keys_of_the_wrong_type_changes_nothing(
    schedule, cancel, raw, snapshot, key
):
    await schedule(job("a", digest="d"))
    await raw("SET", getattr(raw.keys, key), "something else")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await cancel("a")

    assert await snapshot() == before


async def test_an_index_of_the_wrong_type_leaves_every_job_of_the_call(
    schedule, cancel, raw, snapshot
):
    await schedule(job("a"), job("b"))
    await raw("RPUSH", raw.keys.didx("b"), "not a member")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await cancel("a", "b")

    assert await snapshot() == before
