"""Upkeep: queues move on where no worker promotes, fires or sweeps."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from chasquimq.engine.upkeep import Janitor
from chasquimq.errors import ServerUnreachable
from chasquimq.repeat import RepeatPattern
from chasquimq.settings import ConnectionSettings, UpkeepSettings
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.upkeep import JanitorStore
from chasquimq.worker.upkeep import Upkeep
from support.waiting import eventually


@asynccontextmanager
async def running(upkeep: Upkeep):
    task = asyncio.create_task(upkeep.run())
    try:
        yield upkeep
    finally:
        await upkeep.close()
        await task


@pytest.fixture
async def group(raw):
    """The group that a first worker would have made."""
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")


@pytest.fixture
async def janitor(url, queue_name, group):
    link = ReconnectingConnection(ConnectionSettings(url=url))
    yield Janitor(JanitorStore(queue_name, "default", link), 1)
    await link.close()


async def test_delayed_jobs_become_ready_without_a_worker(url, queue_name, queue):
    await queue.add("later", 1, delay_ms=50)

    async with running(Upkeep(queue_name, redis_url=url)):

        async def is_ready():
            return (await queue.counts()).ready == 1

        await eventually(is_ready)


async def test_repeatables_fire_without_a_worker(url, queue_name, queue):
    await queue.upsert_repeatable_job("tick", 1, repeat=RepeatPattern.every(100), limit=3)

    async with running(Upkeep(queue_name, redis_url=url)):

        async def has_fired():
            return (await queue.counts()).ready == 3

        await eventually(has_fired)


async def test_the_second_upkeep_leads_when_the_first_is_closed(url, queue_name):
    async with running(Upkeep(queue_name, redis_url=url)) as second_to_be:
        await eventually(lambda: second_to_be.is_leader)
        async with running(Upkeep(queue_name, redis_url=url)) as second:
            assert not second.is_leader
            await second_to_be.close()
            await eventually(lambda: second.is_leader, within_s=2)


async def test_a_server_that_is_not_there_is_told_at_once(queue_name, tmp_path):
    with pytest.raises(ServerUnreachable, match="chasqui server start"):
        await Upkeep(queue_name, redis_url=f"unix://{tmp_path}/none.sock").run()


async def test_the_janitor_forgets_ghosts_and_only_ghosts(queue, raw, janitor):
    await queue.add_bulk([{"name": "a", "data": at} for at in range(5)])
    rows = await raw(
        "XREADGROUP", "GROUP", "default", "w", "COUNT", 5, "STREAMS", raw.keys.stream, ">"
    )
    ids = [row[0] for row in rows[0][1]]
    await raw("XDEL", raw.keys.stream, ids[0], ids[3])

    await janitor.run_once()

    assert [row[0] for row in await raw.pending()] == [ids[1], ids[2], ids[4]]
    assert janitor.ghost_count == 2


async def test_the_janitor_reaps_only_consumers_that_hold_nothing_for_long(raw, queue, janitor):
    await queue.add("held", 1)
    await raw("XREADGROUP", "GROUP", "default", "busy", "STREAMS", raw.keys.stream, ">")
    await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", "fresh")

    await janitor.run_once()

    assert sorted(await raw.consumers()) == ["busy", "fresh"]


async def test_a_consumer_that_left_nothing_behind_is_forgotten(raw, queue, url, queue_name, group):
    await queue.add("held", 1)
    await raw("XREADGROUP", "GROUP", "default", "busy", "STREAMS", raw.keys.stream, ">")
    for name in ("gone", "returned"):
        await raw("XGROUP", "CREATECONSUMER", raw.keys.stream, "default", name)
    link = ReconnectingConnection(ConnectionSettings(url=url))

    assert await JanitorStore(queue_name, "default", link).reap_consumers(0) == 1

    assert sorted(await raw.consumers()) == ["busy", "returned"]
    assert len(await raw.pending()) == 1
    await link.close()


async def test_the_janitor_sweeps_the_index_while_a_stranger_leads_promotion(
    url, queue_name, queue, raw, group
):
    """ChasquiMQ in Rust promotes jobs and knows nothing of the index."""
    await raw("SET", raw.keys.promoter_lock, "a stranger")
    waiting = await queue.add("later", 1, delay_ms=3_600_000)
    await raw("HSET", raw.keys.dix, *[part for at in range(700) for part in (f"gone-{at}", at)])

    async def is_swept():
        return await raw("HKEYS", raw.keys.dix) == [waiting.id.encode()]

    async with running(
        Upkeep(queue_name, redis_url=url, settings=UpkeepSettings(janitor_ms=200))
    ) as upkeep:
        await eventually(is_swept, within_s=3)
        assert not upkeep.is_leader
    assert await queue.cancel_delayed(waiting.id)


async def test_one_janitor_of_a_fleet_sweeps_at_a_time(url, queue_name, raw, group):
    await raw("SET", raw.keys.janitor_turn, "1", "PX", 60_000)
    await raw("HSET", raw.keys.dix, "gone", 1)

    async with running(Upkeep(queue_name, redis_url=url, settings=UpkeepSettings(janitor_ms=50))):
        await asyncio.sleep(0.5)
        assert await raw("HLEN", raw.keys.dix) == 1
        await raw("DEL", raw.keys.janitor_turn)
        await eventually(lambda: is_gone(raw), within_s=2)


async def is_gone(raw):
    return await raw("EXISTS", raw.keys.dix) == 0


async def test_the_janitor_reaps_consumers_that_can_be_woken_no_more(raw, queue, janitor):
    """A killed worker leaves its name in both groups, and perhaps a call that it never answered."""
    wake = raw.keys.wake
    await raw("XGROUP", "CREATE", wake, "default", "0", "MKSTREAM")
    await raw("XADD", wake, "*", "for", "claim")
    await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", wake, ">")
    await raw("XTRIM", wake, "MAXLEN", 0)

    await janitor.run_once()

    assert await raw("XPENDING", wake, "default", "-", "+", 10) == []
