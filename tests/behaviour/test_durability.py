"""Durability classes: an add is as safe as asked, or says that it is not."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import Queue
from chasquimq.errors import AbilityMissing, DurabilityNotMet, QueueFull, SettingsError
from support.raw import Raw
from support.topologies import port_of


@pytest.fixture
def pair(start_server):
    """A primary and a replica that follows it."""
    primary = start_server(port=0)
    follow = ("--replicaof", f"127.0.0.1 {port_of(primary.url)}")
    return primary, start_server(port=0, args=follow)


@pytest.mark.needs("WAITAOF")
@pytest.mark.own_server(aof="everysec")
async def test_an_add_of_class_fsync_survives_a_kill_of_the_server(server, queue_name):
    async with Queue(queue_name, redis_url=server.url, durability="fsync") as queue:
        jobs = await queue.add_bulk([{"name": "a", "data": at} for at in range(500)])
        server.kill()
        server.restart()

        assert (await queue.counts()).ready == len(jobs)


@pytest.mark.needs("WAITAOF")
@pytest.mark.own_server(aof="everysec")
async def test_single_adds_of_one_tick_share_one_wait(url, queue_name):
    async with Queue(queue_name, redis_url=url, durability="fsync") as queue:
        await queue.add("first", 0)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await asyncio.gather(*(queue.add("a", at) for at in range(100)))

        # One wait takes up to a second on a server that syncs once a second, a hundred a minute.
        assert loop.time() - started_s < 10


async def test_class_fsync_is_refused_before_any_write_where_the_log_is_off(queue, raw):
    with pytest.raises(AbilityMissing, match="appendonly"):
        await queue.add("a", 1, durability="fsync")

    assert await raw("KEYS", f"{raw.keys.stream[:-6]}*") == []


async def test_an_add_of_class_replica_is_on_the_replica_when_it_returns(pair, queue_name):
    primary, replica = pair
    async with Queue(queue_name, redis_url=primary.url, durability="replica:1") as queue:
        await asyncio.wait_for(_until_replicated(queue), 10)
        await queue.add("last", 1)

        copy = await Raw.open(replica.url, queue_name)
        assert b"last" in {fields[b"n"] for _, fields in await copy.entries(copy.keys.stream)}
        await copy.close()


async def _until_replicated(queue):
    while True:
        try:
            return await queue.add("warm-up", 0)
        except DurabilityNotMet:
            continue


async def test_too_few_replicas_is_an_error_that_names_the_written_jobs(queue):
    with pytest.raises(DurabilityNotMet, match="replica:1") as caught:
        await queue.add("a", 1, job_id="kept", durability="replica:1")

    assert caught.value.job_ids == ["kept"]
    assert (await queue.counts()).ready == 1


@pytest.mark.own_server
@pytest.mark.parametrize("wait", [{}, {"delay_ms": 60_000}], ids=["ready", "delayed"])
async def test_a_server_that_has_seen_no_script_yet_is_waited_for_once(queue, raw, wait):
    """The first miss took twice as long: the answer to an unknown script was waited for, too."""
    with pytest.raises(DurabilityNotMet):
        await queue.add("a", 1, job_id="kept", durability="replica:1", **wait)

    assert "cmdstat_wait:calls=1," in (await raw("INFO", "commandstats")).decode()


@pytest.mark.own_server
async def test_writes_under_way_at_once_share_their_waits(url, raw, queue_name):
    """Each had a wait of its own, one behind the other, until the last ones gave up."""
    async with Queue(queue_name, redis_url=url, durability="replica:1") as queue:
        adds = [queue.add("a", at, job_id=f"id-{at}") for at in range(12)]
        errors = await asyncio.gather(*adds, return_exceptions=True)
        counts = await queue.counts()

    calls = (await raw("INFO", "commandstats")).decode()
    assert [type(error) for error in errors] == [DurabilityNotMet] * 12
    assert [list(error.job_ids) for error in errors] == [[f"id-{at}"] for at in range(12)]
    assert counts.ready == 12
    assert "cmdstat_wait:calls=1," in calls or "cmdstat_wait:calls=2," in calls


async def test_a_full_queue_is_told_as_that_even_without_replicas(url, queue_name):
    options = {"redis_url": url, "durability": "replica:1", "max_stream_len": 1}
    async with Queue(queue_name, **options) as queue:
        with pytest.raises(DurabilityNotMet):
            await queue.add("a", 1)

        with pytest.raises(QueueFull):
            await queue.add("a", 2)


@pytest.mark.needs("WAITAOF")
@pytest.mark.own_server(aof="everysec")
async def test_one_who_gives_up_takes_nothing_from_the_others(url, queue_name):
    async with Queue(queue_name, redis_url=url, durability="fsync") as queue:
        await queue.add("first", 0)
        adds = [asyncio.ensure_future(queue.add("a", at, job_id=f"id-{at}")) for at in range(4)]
        await asyncio.sleep(0.05)
        adds[0].cancel()
        adds[2].cancel()

        assert [(await adds[at]).id for at in (1, 3)] == ["id-1", "id-3"]


@pytest.mark.parametrize("text", ["", "disk", "replica", "replica:0", "replica:x", 1])
def test_an_unknown_class_is_refused_at_once(queue_name, text):
    with pytest.raises(SettingsError, match="durability"):
        Queue(queue_name, durability=text)
