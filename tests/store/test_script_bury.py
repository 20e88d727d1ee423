"""bury.lua: one end for each job; a DLQ entry exists exactly once."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError
from chasquimq.store.inspect.queue import server_ms

GROUP = "default"


@pytest.fixture
def bury(run, raw):
    """One call for `consumer`: entries are (entry id, *fields); outcomes are kept for job ids."""

    async def call(consumer, *entries, job_ids=(), outcome_ttl_s=0):
        keys = [raw.keys.stream, raw.keys.dlq, *map(raw.keys.outcome, job_ids)]
        args = [GROUP, consumer, outcome_ttl_s]
        for entry_id, *fields in entries:
            args += (entry_id, "outcome", len(fields), *fields)
        return await run("bury", keys, *args)

    return call


async def test_the_owner_moves_its_entry_to_the_dlq_with_the_servers_time(bury, raw, deliver):
    (entry_id,) = await deliver("me")
    before_ms = await server_ms(raw.connection)

    marks = await bury("me", (entry_id, "d", "bytes", "reason", "malformed"))

    after_ms = await server_ms(raw.connection)
    (fields,) = await raw.dlq()
    assert marks == [1]
    assert before_ms <= int(fields.pop(b"failed_at")) <= after_ms
    assert fields == {b"d": b"bytes", b"reason": b"malformed"}
    assert await raw.pending() == []
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_an_entry_of_another_owner_stays_where_it_is(bury, deliver, snapshot):
    (entry_id,) = await deliver("other")
    before = await snapshot()

    assert await bury("me", (entry_id, "d", "bytes")) == [-1]
    assert await snapshot() == before


async def test_the_second_burial_finds_the_entry_gone(bury, deliver, snapshot):
    (entry_id,) = await deliver("me")
    await bury("me", (entry_id, "d", "bytes"))
    before = await snapshot()

    assert await bury("me", (entry_id, "d", "bytes")) == [0]
    assert await snapshot() == before


async def test_every_entry_of_a_call_gets_its_own_answer(bury, raw, deliver):
    mine, gone = await deliver("me", 2)
    (theirs,) = await deliver("other")
    await bury("me", (gone, "d", "1"))

    marks = await bury("me", (theirs, "d", "2"), (mine, "d", "3", "x", "y"), (gone, "d", "1"))

    assert marks == [-1, 1, 0]
    assert [fields[b"d"] for fields in await raw.dlq()] == [b"1", b"3"]


async def test_an_outcome_is_kept_for_its_time_where_asked(bury, raw, deliver):
    (entry_id,) = await deliver("me")

    assert await bury("me", (entry_id, "d", "1"), job_ids=["id"], outcome_ttl_s=90) == [1]

    ((dlq_id, _),) = await raw.entries(raw.keys.dlq)
    outcome = await raw("GET", raw.keys.outcome("id"))
    assert outcome == b"outcome" + b"\xd9" + bytes([len(dlq_id)]) + dlq_id
    assert 85 <= await raw("TTL", raw.keys.outcome("id")) <= 90


async def test_each_outcome_names_the_entry_of_its_own_job(bury, raw, deliver):
    (gone,), kept = await deliver("me"), await deliver("me", 2)
    await bury("me", (gone, "d", "0"))

    rows = [(one, "d", str(at)) for at, one in enumerate([gone, *kept])]
    await bury("me", *rows, job_ids=["gone", "first", "second"], outcome_ttl_s=90)

    buried = [entry_id for entry_id, _ in await raw.entries(raw.keys.dlq)]
    outcomes = [await raw("GET", raw.keys.outcome(one)) for one in ("gone", "first", "second")]
    assert outcomes[0] is None
    assert [one.endswith(at) for one, at in zip(outcomes[1:], buried[1:], strict=True)] == [
        True
    ] * 2


async def test_no_outcome_is_kept_for_an_entry_that_was_not_ours(bury, raw, deliver):
    (entry_id,) = await deliver("other")

    assert await bury("me", (entry_id, "d", "1"), job_ids=["id"], outcome_ttl_s=90) == [-1]
    assert await raw("EXISTS", raw.keys.outcome("id")) == 0


@pytest.mark.parametrize(
    "tail",
    [("1-1",), ("1-1", "o"), ("1-1", "o", "two"), ("1-1", "o", 0), ("1-1", "o", 1, "d"),
     ("1-1", "o", 3, "d", "1", "e"), ("1-1", "o", 4, "d", "1"), ("1-1", "o", "inf", "d", "1"),
     ("1-1", "o", "2.5", "d", "1"), ("1-1", "o", -2, "d", "1")],
    ids=["no outcome", "no count", "no number", "none", "odd", "odd too", "too many", "infinite",
         "fraction", "negative"],
)  # fmt: skip
async def test_fields_that_do_not_come_in_pairs_are_refused_before_the_ack(
    run, raw, deliver, snapshot, tail
):
    (entry_id,) = await deliver("me")
    before = await snapshot()

    with pytest.raises(StoreError, match="pairs"):
        await run(
            "bury",
            [raw.keys.stream, raw.keys.dlq],
            GROUP,
            "me",
            0,
            entry_id,
            "o",
            2,
            "d",
            "1",
            *tail,
        )

    assert await snapshot() == before


async def test_a_missing_outcome_key_is_refused_before_the_ack(bury, deliver, snapshot):
    (entry_id,) = await deliver("me")
    before = await snapshot()

    with pytest.raises(StoreError, match="key for its outcome"):
        await bury("me", (entry_id, "d", "1"), outcome_ttl_s=90)

    assert await snapshot() == before


@pytest.mark.parametrize("entry_id", ["", "soon", "1-1-1"])
async def test_an_entry_id_that_is_none_is_refused_before_the_ack(
    bury, deliver, snapshot, entry_id
):
    (good,) = await deliver("me")
    before = await snapshot()

    with pytest.raises(StoreError):
        await bury("me", (good, "d", "1"), (entry_id, "d", "2"))

    assert await snapshot() == before


@pytest.mark.parametrize("outcome_ttl_s", ["never", "1.5", "1e30"])
async def test_an_outcome_time_that_is_none_is_refused_before_the_ack(
    bury, deliver, snapshot, outcome_ttl_s
):
    (entry_id,) = await deliver("me")
    before = await snapshot()

    with pytest.raises(StoreError):
        await bury("me", (entry_id, "d", "1"), job_ids=["id"], outcome_ttl_s=outcome_ttl_s)

    assert await snapshot() == before


async def test_a_dlq_of_the_wrong_type_is_refused_before_the_ack(bury, raw, deliver, snapshot):
    (entry_id,) = await deliver("me")
    await raw("SET", raw.keys.dlq, "something else")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await bury("me", (entry_id, "d", "1"))

    assert await snapshot() == before


async def test_a_burial_without_a_group_says_so_and_changes_nothing(bury, snapshot):
    with pytest.raises(StoreError, match="NOGROUP"):
        await bury("me", ("1-1", "d", "1"))

    assert await snapshot() == {}
