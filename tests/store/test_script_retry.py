"""retry.lua: only the owner may fail an entry, only once, and never half."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError
from chasquimq.store.inspecting import server_ms

GROUP = "default"


@pytest.fixture
def retry(run, raw):
    """One call for `consumer`: entries are (entry id, delay_ms, job id, member)."""

    async def call(consumer, *entries):
        keys = [raw.keys.stream, raw.keys.delayed, raw.keys.dix]
        return await run("retry", keys, GROUP, consumer, *(part for e in entries for part in e))

    return call


async def test_the_owner_moves_its_entry_to_the_delayed_set(retry, raw, deliver):
    (entry_id,) = await deliver("me")
    before_ms = await server_ms(raw.connection)

    marks = await retry("me", (entry_id, 5_000, "job", "member"))

    after_ms = await server_ms(raw.connection)
    member, due_ms = await raw("ZRANGE", raw.keys.delayed, 0, -1, "WITHSCORES")
    assert marks == [1]
    assert member == b"member"
    assert before_ms + 5_000 <= int(due_ms) <= after_ms + 5_000
    assert await raw("HGET", raw.keys.dix, "job") == due_ms
    assert await raw.pending() == []
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_a_job_without_an_id_is_not_indexed(retry, raw, deliver):
    (entry_id,) = await deliver("me")

    assert await retry("me", (entry_id, 0, "", "member")) == [1]
    assert await raw("EXISTS", raw.keys.dix) == 0


async def test_an_entry_of_another_owner_stays_where_it_is(retry, deliver, snapshot):
    (entry_id,) = await deliver("other")
    before = await snapshot()

    assert await retry("me", (entry_id, 0, "job", "member")) == [-1]
    assert await snapshot() == before


async def test_the_second_retry_of_an_entry_finds_it_gone(retry, deliver, snapshot):
    (entry_id,) = await deliver("me")
    await retry("me", (entry_id, 0, "job", "member"))
    before = await snapshot()

    assert await retry("me", (entry_id, 0, "job", "member")) == [0]
    assert await snapshot() == before


async def test_every_entry_of_a_call_gets_its_own_answer(retry, deliver):
    mine, gone = await deliver("me", 2)
    (theirs,) = await deliver("other")
    await retry("me", (gone, 0, "gone", "m1"))

    marks = await retry("me", (theirs, 0, "a", "m2"), (mine, 0, "b", "m3"), (gone, 0, "gone", "m1"))

    assert marks == [-1, 1, 0]


async def test_entries_far_apart_and_out_of_order_are_all_found(retry, raw, deliver):
    first, *others, last = await deliver("me", 6)

    marks = await retry("me", (last, 0, "b", "m2"), (first, 0, "a", "m1"))

    assert marks == [1, 1]
    assert sorted(await raw("ZRANGE", raw.keys.delayed, 0, -1)) == [b"m1", b"m2"]
    assert [row[0] for row in await raw.pending()] == others


async def test_an_entry_that_comes_twice_is_gone_the_second_time(retry, raw, deliver):
    first, second = await deliver("me", 2)

    entries = [(first, 0, "a", "m1"), (second, 0, "b", "m2"), (first, 0, "a", "m1")]
    marks = await retry("me", *entries)

    assert marks == [1, 1, 0]
    assert await raw("ZCARD", raw.keys.delayed) == 2


@pytest.mark.parametrize("delay_ms", ["soon", "", "nan", "inf", "-inf", "-1", "1e300"])
async def test_a_delay_that_is_no_time_is_refused_before_the_ack(
    retry, deliver, snapshot, delay_ms
):
    good, bad = await deliver("me", 2)
    before = await snapshot()

    with pytest.raises(StoreError, match="delay_ms"):
        await retry("me", (good, 0, "a", "m1"), (bad, delay_ms, "b", "m2"))

    assert await snapshot() == before


@pytest.mark.parametrize("entry_id", ["", "soon", "1-1-1", "-", "+"])
async def test_an_entry_id_that_is_none_is_refused_before_the_ack(
    retry, deliver, snapshot, entry_id
):
    (good,) = await deliver("me")
    before = await snapshot()

    with pytest.raises(StoreError):
        await retry("me", (good, 0, "a", "m1"), (entry_id, 0, "b", "m2"))

    assert await snapshot() == before


@pytest.mark.parametrize("parts", [(), ("1-1",), ("1-1", 0, "job")], ids=["0", "1", "3"])
async def test_entries_that_do_not_come_in_fours_are_refused(retry, parts):
    with pytest.raises(StoreError, match="fours"):
        await retry("me", parts)


@pytest.mark.parametrize("key", ["delayed", "dix"])
async def test_a_target_of_the_wrong_type_is_refused_before_the_ack(
    retry, raw, deliver, snapshot, key
):
    (entry_id,) = await deliver("me")
    await raw("SET", getattr(raw.keys, key), "something else")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await retry("me", (entry_id, 0, "job", "member"))

    assert await snapshot() == before


async def test_a_retry_without_a_group_says_so_and_changes_nothing(retry, snapshot):
    with pytest.raises(StoreError, match="NOGROUP"):
        await retry("me", ("1-1", 0, "job", "member"))

    assert await snapshot() == {}
