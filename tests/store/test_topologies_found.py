"""Which server a connection goes to, on servers that say just what a test wants them to say."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from chasquimq import Queue
from chasquimq.errors import ServerRefused, ServerUnreachable, SettingsError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.connection import pack
from chasquimq.store.net.reconnect import ReconnectingConnection
from store.certificates import Authority
from store.fake_server import NEW, OK, FakeServer
from support.faultproxy import FaultProxy
from support.waiting import eventually

SECRET = "canary-7f3a"
PONG = b"+PONG\r\n"
LEADS = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"
FOLLOWS = b"*2\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n"
NODE = {"CLIENT": OK, "AUTH": OK, "PING": PONG, "ROLE": LEADS}


@pytest.fixture
async def link_to():
    links = []

    def make(url, **settings) -> ReconnectingConnection:
        links.append(ReconnectingConnection(ConnectionSettings(url=url, **settings)))
        return links[-1]

    yield make
    for link in links:
        await link.close()


def place(server) -> str:
    return urlsplit(server.url).netloc


def knows(*servers) -> dict:
    """A Sentinel that names these masters one after the other."""
    answers = [b"*2\r\n%b%b" % tuple(map(bulk, place(one).split(":"))) for one in servers]
    return NODE | {"SENTINEL": answers}


def slots_at(server) -> bytes:
    """What a cluster of one node says of its slots."""
    host, port = place(server).split(":")
    master = b"*3\r\n%b:%d\r\n%b" % (bulk(host), int(port), bulk("id"))
    return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + master


def bulk(text: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


async def test_the_master_that_a_sentinel_names_is_dialled(link_to):
    async with FakeServer(NODE) as node, FakeServer(knows(node)) as sentinel:
        assert await link_to(f"redis+sentinel://{place(sentinel)}/m").call("PING") == b"PONG"

        assert [command[-1] for command in sentinel.commands if command[0] == b"SENTINEL"] == [b"m"]
        assert (node.accept_count, node.count("SENTINEL")) == (1, 0)


async def test_sentinels_that_are_down_are_left_out(link_to, unused_tcp_port):
    async with FakeServer(NODE) as node, FakeServer(knows(node)) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{unused_tcp_port},{place(sentinel)}/m"

        assert await link_to(url).call("PING") == b"PONG"


async def test_sentinels_that_are_all_down_are_one_clear_sentence(link_to, unused_tcp_port):
    url = f"redis+sentinel://:{SECRET}@127.0.0.1:{unused_tcp_port}/m?sentinel_password={SECRET}"

    with pytest.raises(ServerUnreachable, match=r"must know the master 'm', found none") as caught:
        await link_to(url).call("PING")

    assert SECRET not in str(caught.value)


async def test_each_gets_its_own_password(link_to):
    async with FakeServer(NODE) as node, FakeServer(knows(node)) as sentinel:
        url = f"redis+sentinel://me:data@{place(sentinel)}/m?sentinel_password=watch"
        await link_to(url).call("PING")

        assert [b"AUTH", b"watch"] in sentinel.commands
        assert [b"AUTH", b"me", b"data"] in node.commands


async def test_a_sentinel_that_is_behind_is_not_believed(link_to):
    answers = NODE | {"ROLE": (LEADS, FOLLOWS, FOLLOWS, LEADS)}
    async with FakeServer(answers) as node, FakeServer(knows(node)) as sentinel:
        link = link_to(f"redis+sentinel://{place(sentinel)}/m")
        connection = await link.connection()
        connection.abort("for the test")

        assert await asyncio.wait_for(link.call("PING"), 10) == b"PONG"
        assert (node.accept_count, sentinel.count("SENTINEL")) == (4, 4)


async def test_a_master_that_follows_is_told_as_that_at_first(link_to):
    answers = NODE | {"ROLE": FOLLOWS}
    async with FakeServer(answers) as node, FakeServer(knows(node)) as sentinel:
        with pytest.raises(ServerRefused, match="must lead, its role is slave"):
            await link_to(f"redis+sentinel://{place(sentinel)}/m").call("PING")


async def test_who_may_not_ask_for_the_role_is_let_in(link_to):
    answers = NODE | {"ROLE": b"-NOPERM this user has no permissions to run the 'role' command\r\n"}
    async with FakeServer(answers) as node, FakeServer(knows(node)) as sentinel:
        assert await link_to(f"redis+sentinel://{place(sentinel)}/m").call("PING") == b"PONG"


async def test_a_new_master_is_found_when_the_old_one_is_read_only(link_to):
    readonly = NODE | {"PING": b"-READONLY You can't write against a read only replica.\r\n"}
    async with (
        FakeServer(readonly) as old,
        FakeServer(NODE) as new,
        FakeServer(knows(old, new)) as sentinel,
    ):
        link = link_to(f"redis+sentinel://{place(sentinel)}/m")
        with pytest.raises(ServerRefused, match="READONLY"):
            await link.call("PING")

        assert await asyncio.wait_for(link.call("PING"), 10) == b"PONG"
        assert (old.accept_count, new.accept_count) == (1, 1)


async def test_a_slot_that_has_moved_is_followed_without_asking_again(link_to):
    async with FakeServer(NODE) as new:
        moved = NODE | {"PING": b"-MOVED 3825 %b\r\n" % place(new).encode()}
        async with FakeServer(moved) as old:
            old._answers["CLUSTER"] = [slots_at(old)]
            link = link_to(f"redis+cluster://{place(old)}", queue="q")
            with pytest.raises(ServerRefused, match="MOVED"):
                await link.call("PING")

            assert await asyncio.wait_for(link.call("PING"), 10) == b"PONG"
            assert (old.count("CLUSTER"), new.count("CLUSTER"), new.accept_count) == (1, 0, 1)


async def test_a_thread_follows_too(unused_tcp_port):
    async with FakeServer(NODE) as new:
        moved = NODE | {"PING": b"-MOVED 3825 %b\r\n" % place(new).encode()}
        async with FakeServer(moved) as old:
            old._answers["CLUSTER"] = [slots_at(old)]
            url = f"redis+cluster://127.0.0.1:{unused_tcp_port},{place(old)}"
            connection = BlockingConnection(ConnectionSettings(url=url, queue="q"))
            with pytest.raises(ServerRefused, match="MOVED"):
                await asyncio.to_thread(connection.call, "PING")

            assert await asyncio.to_thread(connection.call, "PING") == b"PONG"
            connection.close()


@pytest.mark.parametrize(
    "text",
    ["LOADING Redis is loading", "MOVED 1 127.0.0.1:1", "MASTERDOWN Link with MASTER is down"],
)
async def test_a_question_is_asked_again_until_somebody_can_answer(link_to, text):
    answers = NODE | {"PING": (b"-%b\r\n" % text.encode(), PONG)}
    async with FakeServer(answers) as server:
        replies = await asyncio.wait_for(link_to(server.url).ask(pack(("PING",))), 10)

        assert replies == [b"PONG"]
        assert server.count("PING") == 2


async def test_a_provider_is_asked_about_the_node_that_was_found():
    asked = []

    async def provider(address):
        asked.append(address)
        return "me", "data"

    async with FakeServer(NEW | NODE) as node, FakeServer(knows(node)) as sentinel:
        url = f"redis+sentinel://{place(sentinel)}/m"
        async with Queue("q", redis_url=url, credential_provider=provider) as queue:
            await asyncio.wait_for(queue.add("n", 1), 10)

        assert asked == [place(node)]
        assert [b"AUTH", b"me", b"data"] in node.commands
        assert sentinel.count("AUTH") == 0


async def test_tls_covers_those_who_are_asked_and_those_who_are_found(link_to, tmp_path):
    authority = Authority(tmp_path)
    certificate = authority.server("good")
    async with (
        FakeServer(NODE) as node,
        FaultProxy(node.url, certificate) as node_tls,
        FakeServer(knows(node_tls)) as sentinel,
        FaultProxy(sentinel.url, certificate) as sentinel_tls,
    ):
        url = f"rediss+sentinel://{place(sentinel_tls)}/m"
        with pytest.raises(ServerUnreachable, match="must know the master"):
            await link_to(url).call("PING")

        trusting = f"{url}?ssl_ca_certs={authority.certificate}"
        assert await link_to(trusting).call("PING") == b"PONG"
        with pytest.raises(SettingsError, match="without ssl_cert_reqs"):
            await link_to(f"{url}?ssl_cert_reqs=none").call("PING")


async def test_an_outage_of_everything_costs_few_dials(link_to):
    async with (
        FakeServer(NODE) as node,
        FakeServer(knows(node)) as sentinel,
        FaultProxy(sentinel.url) as watched,
    ):
        link = link_to(f"redis+sentinel://{place(watched)}/m")
        connection = await link.connection()
        watched.refuse()
        connection.abort("for the test")
        call = asyncio.ensure_future(link.call("PING"))
        await eventually(lambda: link.dial_count >= 3)
        assert not call.done()
        assert node.accept_count == 1
        await watched.accept()

        assert await asyncio.wait_for(call, 10) == b"PONG"
        assert link.dial_count <= 7
