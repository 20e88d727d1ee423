"""The proxy does what it says, or every test that relies on it proves nothing."""

from __future__ import annotations

import asyncio

import pytest

from support.faultproxy import FaultProxy
from support.waiting import eventually

PING = b"PING\r\n"
PONG = b"+PONG\r\n"


@pytest.fixture
async def proxy(url):
    async with FaultProxy(url) as proxy:
        yield proxy


@pytest.fixture
async def dial(proxy):
    """Open plain connections through the proxy; all are closed when the test ends."""
    writers = []

    async def open_one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = proxy.url.removeprefix("redis://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
        return reader, writer

    yield open_one
    for writer in writers:
        writer.transport.abort()


async def pong(client) -> bytes:
    reader, writer = client
    writer.write(PING)
    return await asyncio.wait_for(reader.readexactly(len(PONG)), 5)


async def test_it_passes_everything_on_and_counts_dials(proxy, dial):
    first, second = await dial(), await dial()

    answers = [await pong(first), await pong(second), await pong(first)]

    assert answers == [PONG] * 3
    assert (proxy.accept_count, proxy.write_count) == (2, 3)


async def test_latency_is_paid_both_ways(proxy, dial):
    client = await dial()
    await pong(client)
    proxy.latency_s = 0.02
    loop = asyncio.get_running_loop()

    started_s = loop.time()
    await pong(client)

    assert loop.time() - started_s >= 0.04


async def test_a_cut_is_a_reset(proxy, dial):
    reader, _writer = client = await dial()
    await pong(client)

    proxy.cut()

    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(1), 5)


async def test_a_close_is_an_end(proxy, dial):
    reader, _ = client = await dial()
    await pong(client)

    proxy.close()

    assert await asyncio.wait_for(reader.read(1), 5) == b""


async def test_a_frozen_connection_says_nothing_until_it_thaws(proxy, dial):
    reader, writer = client = await dial()
    await pong(client)
    proxy.freeze()
    writer.write(PING)
    answer = asyncio.ensure_future(reader.readexactly(len(PONG)))
    await eventually(lambda: proxy.write_count == 2)
    assert not answer.done()

    proxy.thaw()

    assert await asyncio.wait_for(answer, 5) == PONG


async def test_a_dropped_reply_leaves_its_request_done(proxy, dial, raw, queue_name):
    _, writer = client = await dial()
    await pong(client)

    proxy.drop_replies()
    writer.write(b"INCR %b\r\n" % queue_name.encode())
    await eventually(lambda: proxy.dropped_bytes)

    assert await raw("GET", queue_name) == b"1"


async def test_a_partial_write_reaches_the_server_only_in_part(proxy, dial, raw, queue_name):
    reader, writer = client = await dial()
    await pong(client)

    proxy.cut_after(len(PING))
    writer.write(PING + b"INCR %b\r\n" % queue_name.encode())

    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.readexactly(2 * len(PONG)), 5)
    assert await raw("GET", queue_name) is None


async def test_a_refused_dial_fails_and_the_port_comes_back(proxy, dial):
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await dial()

    await proxy.accept()

    assert await pong(await dial()) == PONG
