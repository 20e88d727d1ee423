"""Reads that heal, and pages that stay small."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import Queue
from chasquimq.errors import ConnectionLost, ServerRefused
from chasquimq.store.inspect.pages import NamedPages, PageSize, ReadStore, StreamPages
from support.waiting import eventually, patience

MIB = 1024 * 1024


@pytest.fixture
async def link(proxy, queue_name):
    async with Queue(queue_name, redis_url=proxy.url) as queue:
        await queue.counts()
        yield queue._store().connection


@pytest.fixture
def reads(link):
    return ReadStore(link)


async def every_page(pages) -> list[list[bytes]]:
    found = []
    while (page := await pages.next()) is not None:
        found.append([entry_id for entry_id, _ in page])
    return found


async def fill(raw, count: int) -> list[bytes]:
    return [await raw("XADD", raw.keys.dlq, "*", "d", str(at)) for at in range(count)]


def test_pages_of_light_entries_grow_up_to_their_ceiling():
    size = PageSize(first=100, most=500)
    counts = []

    for _ in range(4):
        counts.append(size.count)
        size.learn(size.count * 100)

    assert counts == [100, 200, 400, 500]


def test_pages_of_heavy_entries_shrink_to_a_mebibyte():
    size = PageSize(first=100, most=500)

    size.learn(100 * MIB // 10)
    assert size.count == 10

    size.learn(10 * 4 * MIB)
    assert size.count == 1


def test_an_empty_page_changes_little():
    size = PageSize(first=100, most=500)

    size.learn(0)

    assert size.count == 200


async def test_every_entry_of_a_stream_is_met_once_in_order(reads, raw):
    ids = await fill(raw, 25)

    pages = await every_page(StreamPages(reads, raw.keys.dlq, PageSize(2, 8)))

    assert [one for page in pages for one in page] == ids
    assert [len(page) for page in pages] == [2, 4, 8, 8, 3]


async def test_a_stream_can_be_walked_newest_first(reads, raw):
    ids = await fill(raw, 7)

    pages = StreamPages(reads, raw.keys.dlq, PageSize(2, 2), is_newest_first=True)

    assert [one for page in await every_page(pages) for one in page] == ids[::-1]


async def test_a_walk_keeps_to_its_bounds(reads, raw):
    ids = await fill(raw, 6)
    bounds = {"oldest": f"({ids[0].decode()}", "newest": ids[4].decode()}

    pages = StreamPages(reads, raw.keys.dlq, PageSize(2, 2), **bounds)

    assert [one for page in await every_page(pages) for one in page] == ids[1:5]


async def test_entries_by_name_come_in_the_order_of_their_names(reads, raw):
    ids = await fill(raw, 3)
    wanted = [ids[2].decode(), "1-1", ids[0].decode()]

    pages = await every_page(NamedPages(reads, raw.keys.dlq, PageSize(2, 2), wanted))

    assert pages == [[ids[2]], [ids[0]]]


async def test_a_read_is_asked_again_when_the_connection_breaks(reads, raw, proxy):
    await fill(raw, 3)
    proxy.freeze()
    sent = proxy.write_count
    asking = asyncio.create_task(reads.ask(("XLEN", raw.keys.dlq), ("PING",)))
    await eventually(lambda: proxy.write_count > sent)
    proxy.cut()
    proxy.thaw()

    assert await asking == [3, b"PONG"]
    assert proxy.accept_count == 2


async def test_a_read_gives_up_when_the_server_stays_away(link, proxy):
    proxy.refuse()
    proxy.cut()
    link._answer_s = 0.3
    reads = ReadStore(link)
    started_s = asyncio.get_running_loop().time()

    with pytest.raises(ConnectionLost):
        await reads.ask(("PING",))

    assert asyncio.get_running_loop().time() - started_s < 2 * patience()


async def test_an_error_of_the_server_is_raised_at_once(reads, raw):
    await raw("SET", raw.keys.dlq, "not a stream")

    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        await reads.ask(("PING",), ("XLEN", raw.keys.dlq))
