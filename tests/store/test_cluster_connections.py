"""Links to the servers of a cluster: one a queue, and one server that is away hides no other."""

from __future__ import annotations

import asyncio
import json

import pytest

from chasquimq import Queue
from chasquimq.errors import ServerUnreachable
from chasquimq.queue.inspector import Inspector
from chasquimq.server.probe import free_port
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.cluster import ClusterConnections
from chasquimq.store.net.route import SLOT_COUNT, slot_of
from chasquimq.wire.keys import QueueKeys
from store.fake_server import OK, FakeServer
from support.topologies import port_of

HALF = SLOT_COUNT // 2


def told_slots(*ports: int) -> bytes:
    """What CLUSTER SLOTS says of masters that share the slots evenly."""
    size = SLOT_COUNT // len(ports)
    rows = [
        b"*3\r\n:%d\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % (at * size, (at + 1) * size - 1, port)
        for at, port in enumerate(ports)
    ]  # fmt: skip
    return b"*%d\r\n" % len(rows) + b"".join(rows)


@pytest.fixture
async def half_gone(proxy):
    """The URL of a cluster whose first master is there and whose second is not."""
    slots = told_slots(port_of(proxy.url), free_port())
    async with FakeServer({"CLIENT": OK, "CLUSTER": slots}) as seed:
        yield seed.url.replace("redis:", "redis+cluster:")


@pytest.fixture
async def links(proxy):
    async with FakeServer({"CLIENT": OK, "CLUSTER": told_slots(port_of(proxy.url))}) as seed:
        url = seed.url.replace("redis:", "redis+cluster:")
        links = ClusterConnections(ConnectionSettings(url=url), name="test")
        yield links
        await links.close()


@pytest.fixture
def pair(queue_name) -> tuple[str, str]:
    """A queue in each half of the slots."""
    names = [f"{queue_name}-{at}" for at in range(100)]
    first = next(name for name in names if slot_of(name) < HALF)
    return first, next(name for name in names if slot_of(name) >= HALF)


async def test_a_master_that_is_away_hides_only_its_own_queues(half_gone, pair, url):
    here, gone = pair
    async with Queue(here, redis_url=url) as queue:
        await queue.add("n", 1)

    async with Inspector(redis_url=half_gone) as inspector:
        survey = await inspector.survey([gone, here])

        assert [(one.queue, one.stream_depth) for one in survey.snapshots] == [(here, 1)]
        assert list(survey.unseen) == [gone]
        with pytest.raises(ServerUnreachable):
            await inspector.snapshot(gone)


async def test_queues_of_masters_that_are_there_are_found(half_gone, pair, url):
    async with Queue(pair[0], redis_url=url) as queue:
        await queue.add("n", 1)
    missed = []

    async with Inspector(redis_url=half_gone) as inspector:
        assert pair[0] in await inspector.queues(on_missed=missed.append)
        assert [type(one) for one in missed] == [ServerUnreachable]
        with pytest.raises(ServerUnreachable):
            await inspector.queues()


async def test_commands_show_what_can_be_seen_and_say_what_cannot(half_gone, pair, url, say):
    async with Queue(pair[0], redis_url=url) as queue:
        await queue.add("n", 1)

    code, out, err = await say("metrics", *pair, "--redis-url", half_gone)
    assert f'chasquimq_queue_up{{queue="{pair[0]}",group="default"}} 1' in out
    assert f'chasquimq_queue_up{{queue="{pair[1]}",group="default"}} 0' in out
    assert (code, err.count("a server must answer")) == (1, 1)

    code, out, err = await say("queues", "--json", "--redis-url", half_gone)
    assert pair[0] in {row["queue"] for row in json.loads(out)}
    assert (code, err.count("a server must answer")) == (1, 1)


async def open_links(links, names) -> list:
    opened = []
    for name in names:
        opened.append(await links.of(name))
        await opened[-1].call("EXISTS", QueueKeys(name).stream)
    return opened


async def test_callers_at_once_share_one_link(links, queue_name, proxy):
    await open_links(links, [f"{queue_name}-{at}" for at in range(16)])

    first, second = await asyncio.gather(links.of(queue_name), links.of(queue_name))

    assert first is second


async def test_a_link_in_use_is_not_closed_to_make_room(links, queue_name, raw):
    (used,) = await open_links(links, [queue_name])
    waiting = asyncio.create_task(used.call("BLPOP", raw.keys.dlid("x"), 0, block_ms=20_000))
    await asyncio.sleep(0)

    await open_links(links, [f"{queue_name}-{at}" for at in range(20)])
    await raw("LPUSH", raw.keys.dlid("x"), "v")

    assert (await asyncio.wait_for(waiting, 10))[1] == b"v"


async def test_who_holds_a_link_that_made_room_dials_again(links, queue_name, proxy):
    names = [f"{queue_name}-{at}" for at in range(20)]
    opened = await open_links(links, names)

    assert [link.is_up for link in opened] == [False] * 4 + [True] * 16
    assert await opened[0].call("EXISTS", QueueKeys(names[0]).stream) == 0
