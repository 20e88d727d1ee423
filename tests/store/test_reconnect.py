"""A link comes back by itself, one dial at a time, and never floods a server with dials."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys

import pytest

from chasquimq.errors import ConnectionLost, ServerRefused, ServerUnreachable, StoreError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.reconnect import ReconnectingConnection
from store.fake_server import NEW, FakeServer
from support.waiting import eventually


@pytest.fixture
async def link_to():
    links = []

    def make(url, prepare=None, **settings) -> ReconnectingConnection:
        links.append(
            ReconnectingConnection(ConnectionSettings(url=url, **settings), prepare=prepare)
        )
        return links[-1]

    yield make
    for link in links:
        await link.close()


@pytest.fixture
def link(link_to, proxy) -> ReconnectingConnection:
    return link_to(proxy.url)


async def broken(link: ReconnectingConnection, proxy) -> None:
    """Open the link and break it."""
    await link.call("PING")
    proxy.cut()
    await eventually(lambda: not link.is_up, what="a broken link")


async def test_a_link_dials_when_first_used(link, proxy):
    assert not link.is_up

    assert await link.call("PING") == b"PONG"
    assert (link.is_up, proxy.accept_count) == (True, 1)


async def test_a_link_comes_back_after_a_cut(link, proxy):
    await broken(link, proxy)

    assert await link.call("PING") == b"PONG"
    assert proxy.accept_count == 2


async def test_many_callers_share_one_dial(link, proxy):
    await broken(link, proxy)

    await asyncio.gather(*(link.call("PING") for _ in range(50)))

    assert proxy.accept_count == 2


async def test_the_first_dial_is_tried_once(link, proxy):
    proxy.refuse()

    with pytest.raises(ServerUnreachable):
        await link.call("PING")

    assert link.dial_count == 1


async def test_a_link_that_was_open_dials_until_the_server_is_back(link, proxy):
    await broken(link, proxy)
    proxy.refuse()
    call = asyncio.ensure_future(link.call("PING"))
    await eventually(lambda: link.dial_count >= 3)
    assert not call.done()

    await proxy.accept()

    assert await asyncio.wait_for(call, 5) == b"PONG"


async def test_who_waits_no_longer_than_so_long_is_told_that_nothing_was_done(link, proxy):
    await broken(link, proxy)
    proxy.refuse()

    with pytest.raises(ConnectionLost, match=r"within 0.1 s") as caught:
        await link.connection(within_s=0.1)

    assert caught.value.outcome == "not_done"


async def test_an_outage_is_reported_once_and_not_for_every_dial(link, proxy, caplog):
    caplog.set_level(logging.WARNING)
    await broken(link, proxy)
    proxy.refuse()

    with pytest.raises(ConnectionLost):
        await link.connection(within_s=1.5)

    assert link.dial_count >= 3
    assert len(caplog.records) == 1


async def test_the_end_of_an_outage_is_reported_once_for_all_connections(link_to, proxy, caplog):
    links = [link_to(proxy.url), link_to(proxy.url)]
    for link in links:
        await broken(link, proxy)
    proxy.refuse()
    calls = [asyncio.ensure_future(link.call("PING")) for link in links]
    await eventually(lambda: all(link.dial_count >= 3 for link in links))
    away_s = 0.3
    await asyncio.sleep(away_s)

    await proxy.accept()
    await asyncio.wait_for(asyncio.gather(*calls), 10)

    (gone,) = [said for said in messages(caplog) if "does not answer, dialling again: " in said]
    (line,) = [said for said in messages(caplog) if "connected to" in said]
    assert gone.startswith(f"the server at {proxy.url} does not answer")
    found = re.fullmatch(rf"connected to {re.escape(proxy.url)} again after (.+) s", line)
    assert found
    assert away_s <= float(found[1]) < 30


async def test_a_link_that_breaks_and_comes_back_at_once_reports_nothing(link, proxy, caplog):
    await broken(link, proxy)

    await link.call("PING")

    assert not [said for said in messages(caplog) if "connected to" in said]


def messages(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


async def test_each_new_connection_is_prepared_before_it_is_used(link_to, proxy):
    prepared = []

    async def prepare(connection):
        prepared.append(await connection.call("CLIENT", "ID"))

    link = link_to(proxy.url, prepare)
    await broken(link, proxy)
    await link.call("PING")

    assert len(set(prepared)) == 2


async def test_a_connection_that_cannot_be_prepared_is_not_kept(link_to, proxy):
    async def refuse(connection):
        raise ServerRefused("NOPERM no", code="NOPERM")

    link = link_to(proxy.url, refuse)

    with pytest.raises(ServerRefused):
        await link.connection()

    assert not link.is_up
    await eventually(lambda: proxy.open_count == 0)


async def test_connections_that_die_young_are_dialled_ever_more_slowly(link_to, monkeypatch):
    # On a busy machine a connection that is refused at once may be a second old.
    monkeypatch.setattr("chasquimq.store.net.connect._YOUNG_S", 30.0)
    async with FakeServer(NEW | {"PING": b"-READONLY You can't write\r\n"}) as server:
        link = link_to(server.url)
        until = asyncio.get_running_loop().time() + 1.5
        while asyncio.get_running_loop().time() < until:
            with pytest.raises(StoreError):
                await link.call("PING")

        assert server.accept_count <= 6


async def test_connections_that_lasted_are_dialled_again_at_once(link, proxy, monkeypatch):
    loop, ahead_s = asyncio.get_running_loop(), 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + ahead_s)
    began_s = clock()
    for _ in range(6):
        await link.call("PING")
        ahead_s += 2.0
        await broken(link, proxy)
    await link.call("PING")

    # As young ones they would have waited for more than seven seconds.
    assert clock() - began_s < 5
    assert link.dial_count == 7


async def test_closing_a_link_tells_those_who_wait_for_a_dial(link, proxy):
    await broken(link, proxy)
    proxy.refuse()
    calls = [asyncio.ensure_future(link.call("PING")) for _ in range(2)]
    await eventually(lambda: link.dial_count >= 2)

    await link.close()

    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [ConnectionLost] * 2


async def test_a_caller_that_gives_up_does_not_stop_the_dial_of_the_others(link, proxy):
    await broken(link, proxy)
    proxy.refuse()
    one, other = (asyncio.ensure_future(link.call("PING")) for _ in range(2))
    await eventually(lambda: link.dial_count >= 2)

    one.cancel()
    await proxy.accept()

    assert await asyncio.wait_for(other, 5) == b"PONG"
    assert one.cancelled()


async def test_a_closed_link_stays_closed(link):
    await link.call("PING")
    await link.close()

    with pytest.raises(ConnectionLost, match="closed"):
        await link.call("PING")


async def test_a_link_may_be_closed_twice_and_unused(link):
    await link.close()
    await link.close()


@pytest.mark.parametrize("rounds", range(0, 20, 2))
def test_a_link_that_is_closed_while_it_dials_leaves_no_socket_open(url, rounds, monkeypatch):
    """Closed after so many rounds of the loop, in every state that a dial goes through."""
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)

    async def dial_and_close():
        link = ReconnectingConnection(ConnectionSettings(url=url))
        dialling = asyncio.ensure_future(link.connection())
        for _ in range(rounds):
            await asyncio.sleep(0)
        await link.close()
        await asyncio.wait([dialling])
        dialling.exception()

    asyncio.run(dial_and_close())
    gc.collect()

    assert [str(one.exc_value) for one in complaints] == []
