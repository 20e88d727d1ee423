"""retry.lua: only the owner may fail an entry, only once, and never half."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError
from chasquimq.store.inspect.queue import server_ms
from chasquimq.wire.stream_entry import encode_member

GROUP = "default"
# No server's clock has come there, so these ids are ours to choose.
FAR_MS = 9_000_000_000_000


@pytest.fixture
def retry(run, raw):
    """One call for `consumer`: entries are (entry id, delay_ms, job id, member).

    Those that do not wait are (entry id, "now", name, envelope).
    """

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


async def test_an_entry_that_need_not_wait_goes_to_the_end_of_the_stream(retry, raw, deliver):
    first, _ = await deliver("me", 2)
    before_ms = await server_ms(raw.connection)

    marks = await retry("me", (first, "now", "greet", "envelope"))

    after_ms = await server_ms(raw.connection)
    (_, _), (_, fields) = await raw.entries(raw.keys.stream)
    due_ms = int(fields.pop(b"due"))
    assert marks == [1]
    assert fields == {b"d": b"envelope", b"n": b"greet"}
    assert before_ms <= due_ms <= after_ms
    assert await raw("EXISTS", raw.keys.delayed, raw.keys.dix) == 0
    assert first not in [row[0] for row in await raw.pending()]


async def test_one_without_a_name_goes_there_without_one(retry, raw, deliver):
    (entry_id,) = await deliver("me")

    await retry("me", (entry_id, "now", "", "envelope"))

    ((_, fields),) = await raw.entries(raw.keys.stream)
    assert set(fields) == {b"d", b"due"}


async def test_entries_that_wait_and_that_do_not_travel_together(retry, raw, deliver):
    first, second, third = await deliver("me", 3)

    entries = [(first, "now", "n", "e1"), (second, 9_000, "b", "m2"), (third, "now", "n", "e3")]
    marks = await retry("me", *entries)

    ready = [fields[b"d"] for _, fields in await raw.entries(raw.keys.stream)]
    assert marks == [1, 1, 1]
    assert ready == [b"e1", b"e3"]
    assert await raw("ZRANGE", raw.keys.delayed, 0, -1) == [b"m2"]


async def test_what_a_stream_at_the_end_of_its_ids_refuses_waits_in_the_delayed_set(
    retry, raw, deliver
):
    (entry_id,) = await deliver("me")
    await raw("XADD", raw.keys.stream, f"{2**64 - 1}-{2**64 - 1}", "d", "the last one")

    assert await retry("me", (entry_id, "now", "greet", "envelope")) == [1]
    assert await raw("ZRANGE", raw.keys.delayed, 0, -1) == [encode_member("greet", b"envelope")]


async def test_entries_of_one_moment_are_looked_up_together(retry, raw, deliver):
    await deliver("me")
    for seq in range(300):
        await raw("XADD", raw.keys.stream, f"{FAR_MS}-{seq}", "d", "job")
    reply = await raw(
        "XREADGROUP", "GROUP", GROUP, "me", "COUNT", 300, "STREAMS", raw.keys.stream, ">"
    )
    ids = [entry[0] for entry in reply[0][1]]
    before = await looks(raw)

    marks = await retry("me", *[(entry_id, 0, "", entry_id) for entry_id in ids[50:150]])

    assert marks == [1] * 100
    assert await looks(raw) - before == 1


async def looks(raw):
    """How often the server has been asked who holds what."""
    stats = (await raw("INFO", "commandstats")).decode()
    calls = [line for line in stats.splitlines() if line.startswith("cmdstat_xpending:")]
    return int(calls[0].split("calls=")[1].split(",")[0]) if calls else 0


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


@pytest.mark.parametrize("delay_ms", ["soon", "", "NOW", "nan", "inf", "-inf", "-1", "1e300"])
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
