"""ack.lua and complete.lua: anyone may complete a pending entry, and only the first does."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError

GROUP = "default"
UNKNOWN_ID = "1-1"


async def test_a_pending_entry_is_acknowledged_and_deleted(run, raw, deliver):
    (entry_id,) = await deliver("me")

    marks = await run("ack", [raw.keys.stream], GROUP, entry_id)

    assert marks == [1]
    assert await raw.pending() == []
    assert await raw.entries(raw.keys.stream) == []


async def test_the_second_ack_of_an_entry_finds_it_gone(run, raw, deliver):
    (entry_id,) = await deliver("me")
    await run("ack", [raw.keys.stream], GROUP, entry_id)

    assert await run("ack", [raw.keys.stream], GROUP, entry_id) == [-1]


async def test_an_id_twice_in_one_ack_counts_once(run, raw, deliver):
    (entry_id,) = await deliver("me")

    assert await run("ack", [raw.keys.stream], GROUP, entry_id, entry_id) == [1, -1]


async def test_acks_are_answered_in_order_and_leave_strangers_alone(run, raw, deliver):
    first, second, third = await deliver("me", 3)

    marks = await run("ack", [raw.keys.stream], GROUP, third, UNKNOWN_ID, first)

    assert marks == [1, -1, 1]
    assert [row[0] for row in await raw.pending()] == [second]


async def test_an_entry_that_nobody_read_is_not_acknowledged(run, raw, deliver):
    await deliver("me")
    unread = await raw("XADD", raw.keys.stream, "*", "d", "unread")

    assert await run("ack", [raw.keys.stream], GROUP, unread) == [-1]
    assert await raw("XLEN", raw.keys.stream) == 2


async def test_an_ack_without_a_stream_finds_nothing(run, raw, snapshot):
    assert await run("ack", [raw.keys.stream], GROUP, UNKNOWN_ID) == [-1]
    assert await snapshot() == {}


async def test_a_thousand_acks_fit_one_call(run, raw, deliver):
    entry_ids = await deliver("me", 1_000)

    assert await run("ack", [raw.keys.stream], GROUP, *entry_ids) == [1] * 1_000
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_an_ack_on_a_key_of_the_wrong_type_changes_nothing(run, raw, snapshot):
    await raw("SET", raw.keys.stream, "not a stream")
    before = await snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await run("ack", [raw.keys.stream], GROUP, UNKNOWN_ID)

    assert await snapshot() == before


@pytest.fixture
def complete(run, raw):
    """One call: entries are (entry id, job id, result)."""

    async def call(*entries, result_ttl_s=60, outcome_ttl_s=120):
        keys, args = [raw.keys.stream], [GROUP, result_ttl_s, outcome_ttl_s]
        for entry_id, job_id, result in entries:
            keys += (raw.keys.result(job_id), raw.keys.outcome(job_id))
            args += (entry_id, result, "outcome")
        return await run("complete", keys, *args)

    return call


async def test_a_completion_keeps_result_and_outcome_for_their_times(complete, raw, deliver):
    (entry_id,) = await deliver("me")

    assert await complete((entry_id, "id", "result")) == [1]

    assert await raw("GET", raw.keys.result("id")) == b"result"
    assert await raw("GET", raw.keys.outcome("id")) == b"outcome"
    assert 55 <= await raw("TTL", raw.keys.result("id")) <= 60
    assert 115 <= await raw("TTL", raw.keys.outcome("id")) <= 120
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_a_completion_without_a_result_keeps_its_outcome_only(complete, raw, deliver):
    (entry_id,) = await deliver("me")

    assert await complete((entry_id, "id", "")) == [1]

    assert await raw("EXISTS", raw.keys.result("id")) == 0
    assert await raw("GET", raw.keys.outcome("id")) == b"outcome"


async def test_a_second_completion_changes_nothing(complete, raw, deliver, snapshot):
    (entry_id,) = await deliver("me")
    await complete((entry_id, "id", "first"))
    before = await snapshot()

    assert await complete((entry_id, "id", "second")) == [0]

    assert await snapshot() == before


async def test_a_result_key_of_the_wrong_type_is_overwritten(complete, raw, deliver):
    (entry_id,) = await deliver("me")
    await raw("RPUSH", raw.keys.result("id"), "not a result")

    assert await complete((entry_id, "id", "result")) == [1]
    assert await raw("GET", raw.keys.result("id")) == b"result"


@pytest.mark.parametrize("ttls", [(0, 120), (60, "never")], ids=["result", "outcome"])
async def test_a_time_to_live_that_is_none_is_refused_before_the_ack(
    complete, deliver, snapshot, ttls
):
    (entry_id,) = await deliver("me")
    before = await snapshot()

    with pytest.raises(StoreError):
        await complete((entry_id, "id", "result"), result_ttl_s=ttls[0], outcome_ttl_s=ttls[1])

    assert await snapshot() == before


async def test_a_missing_key_is_refused_before_the_ack(run, raw, deliver, snapshot):
    (entry_id,) = await deliver("me")
    before = await snapshot()

    with pytest.raises(StoreError):
        await run("complete", [raw.keys.stream], GROUP, 60, 120, entry_id, "result", "outcome")

    assert await snapshot() == before


async def test_completions_that_do_not_come_in_threes_are_refused(run, raw):
    with pytest.raises(StoreError, match="threes"):
        await run("complete", [raw.keys.stream], GROUP, 60, 120, "1-1", "result")
