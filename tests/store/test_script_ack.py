"""ack.lua and complete.lua: anyone may complete a pending entry, and only the first does."""

from __future__ import annotations

import pytest

from chasquimq.errors import StoreError
from chasquimq.settings import AbilitySettings
from chasquimq.store.net import script
from chasquimq.store.net.abilities import has_many_set, many_set_question, probe
from support.older import without_many_set

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


@pytest.fixture(params=["natively", "step by step"])
async def means(request, run, raw):
    """What a call says of the server: that it has XACKDEL and MSETEX, or neither."""
    if request.param == "step by step":
        return 0, 0
    abilities = await probe(raw.connection, raw.keys, AbilitySettings())
    replies = await raw.connection.send(many_set_question(raw.keys), 2)
    return int(abilities.ack_delete), int(has_many_set(replies))


@pytest.fixture
def complete(run, raw, means):
    """One call: entries are (entry id, job id, result)."""

    async def call(*entries, result_ttl_s=60, outcome_ttl_s=120):
        entry_ids, job_ids, results = zip(*entries, strict=True)
        keys = [raw.keys.stream, *map(raw.keys.result, job_ids), *map(raw.keys.outcome, job_ids)]
        head = [GROUP, result_ttl_s, outcome_ttl_s, *means]
        outcomes = ["outcome"] * len(entries)
        return await run("complete", keys, *head, *entry_ids, *results, *outcomes)

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


async def test_completions_are_answered_in_order_and_strangers_leave_nothing(
    complete, raw, deliver
):
    first, second, third = await deliver("me", 3)
    rows = [(third, "c", "3"), (UNKNOWN_ID, "x", "?"), (first, "a", ""), (second, "b", "2")]
    await raw("SET", raw.keys.result("a"), "of an earlier job")

    assert await complete(*rows) == [1, 0, 1, 1]

    results = [await raw("GET", raw.keys.result(job_id)) for job_id in "cxab"]
    assert results == [b"3", None, None, b"2"]
    kept = [await raw("EXISTS", raw.keys.outcome(job_id)) for job_id in "cxab"]
    assert kept == [1, 0, 1, 1]
    assert await raw.pending() == []
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_an_entry_twice_in_one_call_completes_once(complete, raw, deliver):
    (entry_id,) = await deliver("me")

    assert await complete((entry_id, "id", "first"), (entry_id, "id", "second")) == [1, 0]
    assert await raw("GET", raw.keys.result("id")) == b"first"


async def test_a_result_is_kept_where_another_entry_of_its_job_had_none(complete, raw, deliver):
    first, second = await deliver("me", 2)
    await raw("SET", raw.keys.result("id"), "of an earlier job")

    assert await complete((first, "id", ""), (second, "id", "result")) == [1, 1]

    assert await raw("GET", raw.keys.result("id")) == b"result"


async def test_a_server_that_lost_a_command_still_keeps_results(kind):
    async with without_many_set(kind) as (_, raw):
        entry_id = await raw("XADD", raw.keys.stream, "*", "d", "job")
        await raw("XGROUP", "CREATE", raw.keys.stream, GROUP, "0")
        await raw("XREADGROUP", "GROUP", GROUP, "me", "STREAMS", raw.keys.stream, ">")
        keys = [raw.keys.stream, raw.keys.result("id"), raw.keys.outcome("id")]

        head = (GROUP, 60, 120, 0, 1)
        marks = await script.run(
            raw.connection, "complete", keys, *head, entry_id, "result", "outcome"
        )

        assert marks == [1]
        assert await raw("GET", raw.keys.result("id")) == b"result"
        assert 115 <= await raw("TTL", raw.keys.outcome("id")) <= 120


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
        await run(
            "complete", [raw.keys.stream], GROUP, 60, 120, 0, 0, entry_id, "result", "outcome"
        )

    assert await snapshot() == before
