"""The connection for threads: after any trouble the next call dials again."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from chasquimq.errors import ConnectionLost, ServerRefused, ServerUnreachable
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connection import pack
from store.fake_server import NEW, FakeServer
from support.waiting import eventually, patience


@pytest.fixture
def connect():
    opened = []

    def make(url, **settings) -> BlockingConnection:
        opened.append(BlockingConnection(ConnectionSettings(url=url, **settings)))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


async def in_thread(function, *args):
    return await asyncio.wait_for(asyncio.to_thread(function, *args), 10)


async def test_a_call_dials_when_first_used(connect, proxy):
    connection = connect(proxy.url)

    assert await in_thread(connection.call, "PING") == b"PONG"
    assert proxy.accept_count == 1


async def test_several_answers_to_one_write_come_together(connect, proxy):
    connection = connect(proxy.url)

    replies = await in_thread(connection.send, pack(("ECHO", "a")) + pack(("NONSENSE",)), 2)

    assert replies[0] == b"a"
    assert isinstance(replies[1], ServerRefused)


async def test_an_error_reply_is_raised_and_the_connection_stays_good(connect, proxy):
    connection = connect(proxy.url)

    with pytest.raises(ServerRefused):
        await in_thread(connection.call, "NONSENSE")

    assert await in_thread(connection.call, "PING") == b"PONG"
    assert proxy.accept_count == 1


async def test_a_script_is_told_to_a_server_that_forgot_it(connect, proxy, raw):
    connection = connect(proxy.url)
    await raw("SCRIPT", "FLUSH")

    answer = await in_thread(connection.run, "release_lock", [raw.keys.promoter_lock], "me")

    assert answer == 0


@pytest.mark.parametrize("way", ["cut", "close"])
@pytest.mark.parametrize("tries", [1, 2, 3])
async def test_a_connection_that_broke_while_idle_costs_at_most_one_call(
    connect, proxy, way, tries
):
    connection = connect(proxy.url)
    await in_thread(connection.call, "PING")
    getattr(proxy, way)()
    await eventually(lambda: proxy.open_count == 0)

    with pytest.raises(ConnectionLost):
        # A large write meets the broken socket while sending, a small one while receiving.
        await in_thread(connection.call, "ECHO", b"x" * 10 ** (2 * tries))

    assert await in_thread(connection.call, "PING") == b"PONG"
    assert proxy.accept_count == 2


async def test_a_frozen_server_is_given_up_within_the_command_timeout(connect, proxy):
    connection = connect(proxy.url, command_timeout_ms=200)
    await in_thread(connection.call, "PING")
    proxy.freeze()
    started_s = time.monotonic()

    with pytest.raises(ConnectionLost):
        await in_thread(connection.call, "PING")

    assert 0.15 < time.monotonic() - started_s < patience()
    proxy.thaw()
    assert await in_thread(connection.call, "ECHO", "next") == b"next"


async def test_a_late_answer_is_never_taken_for_the_next_one(connect, proxy):
    connection = connect(proxy.url, command_timeout_ms=100)
    await in_thread(connection.call, "PING")
    proxy.latency_s = 0.1
    with pytest.raises(ConnectionLost):
        await in_thread(connection.call, "ECHO", "late")
    proxy.latency_s = 0

    assert await in_thread(connection.call, "ECHO", "next") == b"next"


async def test_an_answer_that_is_not_resp_costs_one_call(connect):
    async with FakeServer(NEW | {"PING": (b"nonsense\r\n", b"+PONG\r\n")}) as server:
        connection = connect(server.url)

        with pytest.raises(ConnectionLost):
            await in_thread(connection.call, "PING")

        assert await in_thread(connection.call, "PING") == b"PONG"
        assert server.accept_count == 2


async def test_an_answer_that_nobody_asked_for_is_not_kept_for_the_next_question(connect):
    async with FakeServer(NEW | {"PING": b"+PONG\r\n+MORE\r\n", "ECHO": b"$1\r\na\r\n"}) as server:
        connection = connect(server.url)

        assert await in_thread(connection.call, "PING") == b"PONG"
        assert await in_thread(connection.call, "ECHO", "a") == b"a"


async def test_no_server_is_one_clear_sentence(connect, proxy):
    proxy.refuse()

    with pytest.raises(ServerUnreachable, match=r"a server must answer at redis://127.0.0.1:\d+"):
        await in_thread(connect(proxy.url).call, "PING")


async def test_a_dial_that_failed_is_tried_again_by_the_next_call(connect, proxy):
    connection = connect(proxy.url)
    proxy.refuse()
    with pytest.raises(ServerUnreachable):
        await in_thread(connection.call, "PING")

    await proxy.accept()

    assert await in_thread(connection.call, "PING") == b"PONG"


READONLY = b"-READONLY You can't write against a read only replica.\r\n"


REPLICA = b"*5\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n$9\r\nconnected\r\n:0\r\n"
MASTER = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"


async def test_a_server_that_sentinels_name_is_not_used_before_it_leads(connect):
    answers = {"PING": b"+PONG\r\n", "ROLE": (REPLICA, MASTER)}
    async with FakeServer(NEW | answers) as server:
        port = server.url.rpartition(":")[2].encode()
        told = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port)
        async with FakeServer({"CLIENT": b"+OK\r\n", "SENTINEL": told}) as sentinel:
            connection = connect(sentinel.url.replace("redis:", "redis+sentinel:") + "/m")

            with pytest.raises(ServerRefused, match="must lead, its role is slave"):
                await in_thread(connection.call, "PING")

            assert server.count("PING") == 0
            assert await in_thread(connection.call, "PING") == b"PONG"


async def test_who_may_not_ask_for_the_role_is_served_all_the_same(connect):
    answers = {"PING": b"+PONG\r\n", "ROLE": b"-NOPERM no permissions to run 'role'\r\n"}
    async with FakeServer(NEW | answers) as server:
        port = server.url.rpartition(":")[2].encode()
        told = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port)
        async with FakeServer({"CLIENT": b"+OK\r\n", "SENTINEL": told}) as sentinel:
            connection = connect(sentinel.url.replace("redis:", "redis+sentinel:") + "/m")

            assert await in_thread(connection.call, "PING") == b"PONG"
            assert server.count("ROLE") == 1


async def calls_for(connection, seconds: float) -> None:
    """Call again and again, as the thread that renews leases does."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        with pytest.raises((ServerRefused, ConnectionLost), match="READONLY"):
            await in_thread(connection.run, "release_lock", ["k"], "me")
        await asyncio.sleep(0.02)


async def test_a_server_that_is_the_wrong_one_is_left_and_dialled_ever_more_slowly(connect):
    answers = {"PING": b"+PONG\r\n", "EVALSHA": READONLY}
    async with FakeServer(NEW | answers) as server:
        connection = connect(server.url)
        await in_thread(connection.call, "PING")

        await calls_for(connection, 1.2)

        assert 2 <= server.accept_count <= 6
        assert server.count("EVALSHA") <= 6


async def test_a_server_that_was_good_for_long_is_left_without_a_pause(connect):
    answers = {"PING": b"+PONG\r\n", "EVALSHA": (READONLY, b":1\r\n")}
    async with FakeServer(NEW | answers) as server:
        connection = connect(server.url)
        await in_thread(connection.call, "PING")
        await asyncio.sleep(1.1)
        with pytest.raises(ServerRefused, match="READONLY"):
            await in_thread(connection.run, "release_lock", ["k"], "me")

        assert await in_thread(connection.run, "release_lock", ["k"], "me") == 1


async def test_a_server_that_is_away_is_dialled_ever_more_slowly(connect, proxy):
    connection = connect(proxy.url)
    await in_thread(connection.call, "PING")
    proxy.freeze()
    proxy.cut()
    proxy.refuse()
    told = []
    until_s = time.monotonic() + 1.2
    while time.monotonic() < until_s:
        with pytest.raises(ConnectionLost) as caught:
            await in_thread(connection.call, "PING")
        told.append(type(caught.value))
        await asyncio.sleep(0.02)

    assert 2 <= told.count(ServerUnreachable) <= 5
    proxy.thaw()
    await proxy.accept()
    await eventually(lambda: _answers(connection), what="an answer")


async def _answers(connection) -> bool:
    try:
        return await in_thread(connection.call, "PING") == b"PONG"
    except ConnectionLost:
        return False


def test_after_a_fork_each_process_has_its_own_connection(connect, url):
    connection = connect(url)
    parent_id = connection.call("CLIENT", "ID")
    reader, writer = os.pipe()

    child = os.fork()
    if child == 0:
        os.write(writer, b"%d" % connection.call("CLIENT", "ID"))
        os._exit(0)
    os.waitpid(child, 0)

    child_id = int(os.read(reader, 100))
    assert child_id != parent_id
    assert connection.call("CLIENT", "ID") == parent_id
    os.close(reader)
    os.close(writer)


def test_closing_from_another_thread_is_allowed(connect, url):
    connection = connect(url)
    connection.call("PING")

    closer = threading.Thread(target=connection.close)
    closer.start()
    closer.join(5)

    assert connection.call("PING") == b"PONG"
