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


@pytest.mark.parametrize("way", ["request_latency_s", "reply_latency_s", "jitter_s"])
async def test_one_way_may_be_slow_by_itself(proxy, dial, way):
    client = await dial()
    await pong(client)
    setattr(proxy, way, 0.05)
    loop = asyncio.get_running_loop()

    started_s = loop.time()
    await pong(client)

    assert loop.time() - started_s >= (0.05 if way != "jitter_s" else 0.001)


async def test_jitter_is_another_wait_each_time(proxy):
    proxy.jitter_s = 0.05
    loop = asyncio.get_running_loop()

    waits_s = []
    for _ in range(4):
        started_s = loop.time()
        await proxy._delay(0.0, 0)
        waits_s.append(round(loop.time() - started_s, 3))

    assert len(set(waits_s)) > 1


async def test_a_narrow_link_takes_its_time(proxy, dial):
    client = await dial()
    await pong(client)
    proxy.bytes_per_s = len(PING) / 0.05
    loop = asyncio.get_running_loop()

    started_s = loop.time()
    await pong(client)

    assert loop.time() - started_s >= 0.1


async def test_slices_arrive_byte_by_byte(proxy, dial):
    client = await dial()
    proxy.slice_bytes = 1

    assert [await pong(client) for _ in range(3)] == [PONG] * 3
    assert list(proxy.slices(b"abc")) == [b"a", b"b", b"c"]


async def test_a_slammed_door_is_a_dial_that_counts_and_fails(proxy, dial):
    proxy.slam()

    reader, _ = await dial()

    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(1), 5)
    assert proxy.accept_count == 1


async def test_a_blackhole_takes_everything_and_says_nothing(proxy, dial):
    proxy.blackhole()
    reader, writer = await dial()
    writer.write(PING)
    answer = asyncio.ensure_future(reader.read(1))
    await eventually(lambda: proxy._mute)
    assert not answer.done()

    proxy.cut()

    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(answer, 5)


async def test_a_share_of_some_commands_is_done_and_never_answered(proxy, raw, dial, queue_name):
    proxy.lose_replies(0.5, [b"INCR"], seed=1)
    command, answered = b"INCR %b\r\n" % queue_name.encode(), 0
    for _ in range(20):
        reader, writer = client = await dial()
        await pong(client)
        writer.write(command)
        try:
            answered += bool(await asyncio.wait_for(reader.read(1), 5))
        except ConnectionResetError:
            continue

    assert (answered + proxy.lost_count, proxy.lost_count > 0, answered > 0) == (20, True, True)
    await eventually(lambda: raw("GET", queue_name))
    assert await raw("GET", queue_name) == b"20"


async def test_a_calm_proxy_has_forgotten_its_manners_of_before(proxy, dial):
    proxy.slam()
    proxy.freeze()
    proxy.drop_replies()
    proxy.lose_replies(1.0, [b"PING"])
    proxy.latency_s, proxy.slice_bytes = 30, 1

    proxy.calm()

    assert await pong(await dial()) == PONG
