"""Reading stretches of streams: facts, entries, measures, and patience after a break."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq.errors import ServerRefused, ServerUnreachable
from chasquimq.settings import ConnectionSettings
from chasquimq.store.inspect.ranges import RangeStore, StreamFacts, Stretch
from store.fake_server import OK, FakeServer


@pytest.fixture
def opened():
    stores = []

    def make(url: str) -> RangeStore:
        stores.append(RangeStore(ConnectionSettings(url=url)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def store(opened, url) -> RangeStore:
    return opened(url)


async def in_thread(function, *args):
    return await asyncio.wait_for(asyncio.to_thread(function, *args), 20)


async def facts_of(store, raw) -> StreamFacts:
    (facts,) = await in_thread(store.facts, [raw.keys.events])
    return facts


async def test_many_streams_are_asked_at_once_and_answered_in_order(store, raw):
    keys = [f"{raw.keys.events}:{at}" for at in range(100)]
    for at in range(0, 100, 3):
        await raw("XADD", keys[at], f"{at + 1}-0", "e", "active")

    facts = await in_thread(store.facts, keys)

    last_ids = [f"{at + 1}-0" if at % 3 == 0 else "0-0" for at in range(100)]
    assert [one.last_id for one in facts] == last_ids


async def test_an_absent_stream_is_an_empty_one(store, raw):
    assert await facts_of(store, raw) == StreamFacts()


async def test_a_stream_tells_its_length_edges_and_counter(store, raw):
    for at in range(1, 6):
        await raw("XADD", raw.keys.events, f"{at}-0", "e", "active")
    await raw("XTRIM", raw.keys.events, "MAXLEN", 3)

    assert await facts_of(store, raw) == StreamFacts(3, "3-0", "5-0", 5)


async def test_a_stream_that_was_emptied_still_knows_its_past(store, raw):
    await raw("XADD", raw.keys.events, "5-0", "e", "active")
    await raw("XTRIM", raw.keys.events, "MAXLEN", 0)

    assert await facts_of(store, raw) == StreamFacts(0, "0-0", "5-0", 1)


async def test_another_kind_of_key_is_told(store, raw):
    await raw("SET", raw.keys.events, "text")

    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        await facts_of(store, raw)


async def test_an_entry_is_there_until_it_is_trimmed(store, raw):
    await raw("XADD", raw.keys.events, "5-0", "e", "active")

    assert await in_thread(store.has, raw.keys.events, "5-0")
    assert not await in_thread(store.has, raw.keys.events, "4-0")


async def test_entries_come_in_pages(store, raw):
    for at in range(1, 6):
        await raw("XADD", raw.keys.events, f"{at}-0", "e", "active")

    page = await in_thread(store.entries, raw.keys.events, "1-0", "4-0", 2)

    assert [entry_id for entry_id, _ in page] == [b"2-0", b"3-0"]


@pytest.mark.parametrize("rows_max", [1, 6, 11, 12, 100])
async def test_who_may_run_no_scripts_measures_the_same(store, opened, raw, url, rows_max):
    for at, rows in enumerate((5, 6, "x", 2), start=1):
        await raw("XADD", raw.keys.history, f"{at}-0", "n", rows)
    await raw("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "+xinfo", "-@scripting")
    limited = opened(f"{url}?username=reader&password=any")
    asked = (raw.keys.history, "0-0", "+", 10, rows_max, "n")

    measured = await in_thread(store.measure, *asked)

    assert isinstance(measured, Stretch)
    assert await in_thread(limited.measure, *asked) == measured
    assert (store._may_script, limited._may_script) == (True, False)


async def test_queues_are_found_by_a_pattern(store, raw, queue_name):
    for queue in (f"{queue_name}-a", f"{queue_name}-b"):
        await raw("XADD", "{chasqui:" + queue + "}:events", "*", "e", "active")
        await raw("XADD", "{chasqui:" + queue + "}:history", "*", "n", "1")
    await raw("XADD", "{chasqui:" + queue_name + "-c}:stream", "*", "d", "x")
    await raw("SET", "{chasqui:" + queue_name + "-d}:events", "no stream")

    found = await in_thread(store.queues, f"{queue_name}-*", "events")

    assert found == [f"{queue_name}-a", f"{queue_name}-b"]


async def test_a_server_that_never_was_there_is_told_at_once(opened):
    store = opened("redis://127.0.0.1:1")

    with pytest.raises(ServerUnreachable, match="a server must answer at redis"):
        await asyncio.wait_for(in_thread(store.facts, ["key"]), 10)


async def test_a_connection_that_breaks_is_opened_again(opened, proxy, raw):
    store = opened(proxy.url)
    await raw("XADD", raw.keys.events, "5-0", "e", "active")
    await facts_of(store, raw)

    proxy.cut()

    assert (await facts_of(store, raw)).added == 1


_XINFO = (
    b"*8\r\n$6\r\nlength\r\n:1\r\n$11\r\nfirst-entry\r\n*-1\r\n"
    b"$17\r\nlast-generated-id\r\n$3\r\n5-0\r\n$13\r\nentries-added\r\n:7\r\n"
)


@pytest.mark.parametrize(
    "trouble",
    [
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-NOAUTH Authentication required.\r\n",
        b"-READONLY You can't write against a read only replica.\r\n",
        b"-MASTERDOWN Link with MASTER is down\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n",
    ],
    ids=["loading", "no auth", "read only", "master down", "cluster down"],
)
async def test_a_server_that_is_busy_with_itself_is_asked_again(opened, trouble):
    async with FakeServer({"CLIENT": OK, "XINFO": (_XINFO, trouble, _XINFO)}) as server:
        store = opened(server.url)
        await in_thread(store.facts, ["key"])

        (facts,) = await in_thread(store.facts, ["key"])

    assert facts.added == 7
    assert server.count("XINFO") == 3
