"""join_group: the first group in use keeps the stream, and nobody else writes anything."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq.errors import ServerOutOfMemory, ServerRefused
from chasquimq.model.snapshot import SILENT_MS_MAX


@pytest.fixture
def join(run, raw):
    async def call(group: str, consumer: str = "me"):
        args = (group, consumer, "returned", SILENT_MS_MAX)
        return await run("join_group", [raw.keys.stream], *args)

    return call


async def test_a_fresh_stream_is_made_with_its_group_and_the_consumer(join, raw):
    assert await join("g") == []
    assert await join("g") == []
    assert await raw.consumers("g") == ["me"]
    assert await raw("XLEN", raw.keys.stream) == 0


async def test_another_group_with_a_consumer_is_told_and_nothing_is_written(join, raw, snapshot):
    await join("g")
    before = await snapshot()

    assert await join("h") == [b"g", 1, 0]
    assert await snapshot() == before


async def test_a_group_whose_jobs_are_parked_is_in_use_and_an_empty_parking_place_is_not(join, raw):
    await raw("XGROUP", "CREATE", raw.keys.stream, "g", "0", "MKSTREAM")
    entry_id = await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XREADGROUP", "GROUP", "g", "returned", "STREAMS", raw.keys.stream, ">")

    assert await join("h") == [b"g", 0, 1]
    await raw("XACK", raw.keys.stream, "g", entry_id)
    assert await join("h") == []


async def test_a_group_of_silent_consumers_is_left_over_unless_they_hold_something(run, raw):
    async def join(group: str, silent_ms_max: int):
        args = (group, "me", "returned", silent_ms_max)
        return await run("join_group", [raw.keys.stream], *args)

    await join("g", 60_000)
    entry_id = await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XREADGROUP", "GROUP", "g", "me", "STREAMS", raw.keys.stream, ">")
    await until_idle(raw, "g")

    assert await join("h", 1) == [b"g", 0, 1]
    await raw("XACK", raw.keys.stream, "g", entry_id)
    assert await join("h", 60_000) == [b"g", 1, 0]
    assert await join("h", 1) == []


async def until_idle(raw, group: str) -> None:
    """Wait until the server has not heard of the consumer for more than a millisecond."""
    async with asyncio.timeout(10):
        while True:
            ((*_, facts),) = [await raw("XINFO", "CONSUMERS", raw.keys.stream, group)]
            if dict(zip(facts[::2], facts[1::2], strict=True))[b"idle"] > 1:
                return


async def test_joining_again_charges_nothing_of_what_the_consumer_holds(join, raw):
    await join("g")
    await raw("XADD", raw.keys.stream, "*", "d", "x")
    await raw("XREADGROUP", "GROUP", "g", "me", "STREAMS", raw.keys.stream, ">")

    await join("g")

    ((_, consumer, _, delivery_count),) = await raw.pending("g")
    assert (consumer, delivery_count) == (b"me", 1)


async def test_a_key_of_another_type_is_an_error(join, raw):
    await raw("SET", raw.keys.stream, "x")

    with pytest.raises(ServerRefused) as caught:
        await join("g")
    assert caught.value.code == "WRONGTYPE"


@pytest.mark.own_server
async def test_without_memory_only_a_group_that_is_there_can_be_joined(join, raw):
    await join("g")
    await raw("CONFIG", "SET", "maxmemory", "1")
    assert await join("g") == []
    await raw("XGROUP", "DESTROY", raw.keys.stream, "g")
    with pytest.raises(ServerOutOfMemory):
        await join("g")
