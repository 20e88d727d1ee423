"""remove_group: a group in use stays, and no entry leaves the stream with a group."""

from __future__ import annotations

import pytest

from chasquimq.errors import ServerRefused

SILENT_MS_MAX = 60_000


@pytest.fixture
def remove(run, raw):
    async def call(group: str = "default", force: int = 0):
        return await run("remove_group", [raw.keys.stream], group, "returned", SILENT_MS_MAX, force)

    return call


async def names(raw) -> list[bytes]:
    return [row[1] for row in await raw("XINFO", "GROUPS", raw.keys.stream)]


async def test_a_group_or_a_stream_that_is_not_there_is_said_to_be_unknown(remove, raw, snapshot):
    assert await remove() == [-1]
    await raw("XGROUP", "CREATE", raw.keys.stream, "mine", "0", "MKSTREAM")
    before = await snapshot()

    assert await remove("other") == [-1]
    assert await snapshot() == before


async def test_a_group_of_nobody_is_removed_and_others_stay(remove, raw):
    for name in ("mine", "old"):
        await raw("XGROUP", "CREATE", raw.keys.stream, name, "0", "MKSTREAM")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "old", "returned")

    assert await remove("old") == [1, 0, 0]
    assert await names(raw) == [b"mine"]


async def test_a_group_with_a_live_consumer_stays_unless_forced(remove, raw, snapshot):
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", "w")
    before = await snapshot()

    assert await remove() == [0, 1, 0]
    assert await snapshot() == before
    assert await remove(force=1) == [1, 1, 0]
    assert await names(raw) == []


async def test_a_group_that_holds_entries_stays_and_by_force_another_group_gets_them(
    remove, deliver, raw
):
    await deliver("returned", 2)

    assert await remove() == [0, 0, 2]
    assert await remove(force=1) == [1, 0, 2]
    await raw("XGROUP", "CREATE", raw.keys.stream, "next", "0")
    reply = await raw("XREADGROUP", "GROUP", "next", "w", "STREAMS", raw.keys.stream, ">")
    assert len(reply[0][1]) == 2


async def test_a_key_of_another_type_is_an_error(remove, raw):
    await raw("SET", raw.keys.stream, "x")

    with pytest.raises(ServerRefused) as caught:
        await remove()
    assert caught.value.code == "WRONGTYPE"
