"""One connection: answers in order, errors as ours, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import socket

import pytest

from chasquimq.errors import ConnectionLost, ServerRefused, ServerUnreachable
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.address import new_async_connection
from chasquimq.store.net.connect import open_connection
from chasquimq.store.net.connection import pack
from store.fake_server import NEW, FakeServer
from support.waiting import eventually, patience

TIMEOUT_MS = 200


@pytest.fixture
async def open_to():
    """Open connections; all are closed when the test ends."""
    opened = []

    async def connect(url, **settings):
        connection = await open_connection(ConnectionSettings(url=url, **settings))
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        await connection.close()


@pytest.fixture
async def connection(open_to, proxy):
    return await open_to(proxy.url, command_timeout_ms=TIMEOUT_MS)


async def elapsed_ms(awaitable) -> tuple[float, BaseException | None]:
    """How long it took, and what it raised."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    try:
        await asyncio.wait_for(awaitable, 10)
        error = None
    except Exception as raised:  # noqa: BLE001  whatever it is, the test looks at it
        error = raised
    return (loop.time() - started_s) * 1000, error


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_a_server_is_reached_by_socket_path_and_by_port(open_to, url, proxy, way):
    connection = await open_to(url if way == "unix" else proxy.url)

    assert await connection.call("PING") == b"PONG"


async def test_answers_come_in_the_order_of_the_questions(connection):
    calls = [connection.call("ECHO", f"{i}") for i in range(100)]

    assert await asyncio.gather(*calls) == [b"%d" % i for i in range(100)]


async def test_several_answers_to_one_write_come_together(connection):
    replies = await connection.send(pack(("ECHO", "a")) + pack(("NONSENSE",)), 2)

    assert replies[0] == b"a"
    assert isinstance(replies[1], ServerRefused)


async def test_an_error_reply_is_raised_and_the_connection_stays_good(connection):
    with pytest.raises(ServerRefused, match="unknown command") as caught:
        await connection.call("NONSENSE")

    assert caught.value.code == "ERR"
    assert await connection.call("PING") == b"PONG"


async def test_megabytes_pass_in_both_directions(open_to, proxy):
    connection = await open_to(proxy.url)
    value = bytes(range(256)) * (32 * 1024)

    assert await connection.call("ECHO", value) == value


async def test_a_frozen_server_is_given_up_within_the_command_timeout(connection, proxy):
    proxy.freeze()

    took_ms, error = await elapsed_ms(connection.call("PING"))

    assert isinstance(error, ConnectionLost)
    assert error.outcome == "unknown"
    assert TIMEOUT_MS * 0.9 <= took_ms < TIMEOUT_MS * 3 * patience()
    assert not connection.is_open


async def test_a_blocking_command_may_take_as_long_as_it_blocks(connection, queue_name):
    took_ms, error = await elapsed_ms(connection.call("BLPOP", queue_name, 0.5, block_ms=500))

    assert error is None
    assert took_ms >= 450


async def test_a_server_that_never_greets_is_given_up_within_the_connect_timeout(open_to, proxy):
    proxy.freeze()

    took_ms, error = await elapsed_ms(open_to(proxy.url, connect_timeout_ms=TIMEOUT_MS))

    assert isinstance(error, ServerUnreachable)
    assert took_ms < TIMEOUT_MS * 3 * patience()


@pytest.mark.parametrize("way", ["cut", "close"])
async def test_pending_calls_hear_that_their_outcome_is_unknown(connection, proxy, way):
    proxy.freeze()
    calls = [asyncio.ensure_future(connection.call("PING")) for _ in range(3)]
    await eventually(lambda: proxy.write_count > 1)

    getattr(proxy, way)()

    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [ConnectionLost] * 3
    assert {error.outcome for error in errors} == {"unknown"}


async def test_a_call_on_a_broken_connection_says_that_nothing_was_done(connection, proxy):
    proxy.cut()
    await eventually(lambda: not connection.is_open)

    with pytest.raises(ConnectionLost) as caught:
        await connection.call("PING")

    assert caught.value.outcome == "not_done"


async def test_closing_tells_who_still_waits(connection, proxy):
    proxy.freeze()
    call = asyncio.ensure_future(connection.call("PING"))
    await asyncio.sleep(0)

    await connection.close()

    with pytest.raises(ConnectionLost, match="closed"):
        await call


async def test_a_cancelled_call_leaves_the_next_answers_to_their_callers(connection, proxy):
    proxy.latency_s = 0.02
    first = asyncio.ensure_future(connection.call("ECHO", "first"))
    second = asyncio.ensure_future(connection.call("ECHO", "second"))
    await asyncio.sleep(0)

    first.cancel()

    assert await second == b"second"


@pytest.mark.parametrize(
    "nonsense", [b"HTTP/1.1 400 Bad Request\r\n", b"*1\r\n*x\r\n", b"\x00\x01\x02"]
)
async def test_an_answer_that_is_not_resp_ends_the_connection(open_to, caplog, nonsense):
    async with FakeServer(NEW | {"PING": nonsense}) as server:
        connection = await open_to(server.url)

        with pytest.raises(ConnectionLost, match="RESP"):
            await asyncio.wait_for(connection.call("PING"), 5)

    assert caplog.records == []


async def test_an_answer_that_nobody_asked_for_ends_the_connection(open_to, caplog):
    async with FakeServer(NEW | {"PING": b"+PONG\r\n+AND\r\n+MORE\r\n"}) as server:
        connection = await open_to(server.url)

        assert await connection.call("PING") == b"PONG"
        await eventually(lambda: not connection.is_open)

    assert caplog.records == []


async def test_a_line_that_nobody_uses_is_looked_after_by_the_system(proxy):
    """A peer that vanished without a word is noticed within 20 s, also where nothing is sent."""
    owner = new_async_connection(ConnectionSettings(url=proxy.url), name="")
    await owner.connect()
    try:
        line = owner._writer.get_extra_info("socket")
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        told = [
            line.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        ]
        assert told == [10, 3, 3]
    finally:
        await owner.disconnect(nowait=True)
