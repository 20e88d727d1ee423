"""Queues behind Sentinels and in a cluster, on servers that really are one."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from chasquimq import Queue, QueueEvents, RepeatPattern, Upkeep, Worker
from chasquimq.errors import ServerRefused, ServerUnreachable
from chasquimq.queue.inspector import Inspector
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.pipeline.sampler import ServerSampler
from chasquimq.store.inspect.ranges import RangeStore
from chasquimq.store.net.blocking import BlockingConnection
from chasquimq.store.net.cluster import ClusterConnections
from chasquimq.wire.keys import QueueKeys
from support.topologies import MASTER, Cluster, Watched, port_of
from support.waiting import eventually
from support.workers import RunningWorker

SECRET = "canary-7f3a"


@pytest.fixture(scope="module")
def _clusters():
    running = {}
    yield running
    for cluster in running.values():
        _outside_of_loops(cluster.__aexit__(None, None, None))


@pytest.fixture
def cluster(kind, _clusters) -> Cluster:
    """Three nodes, shared by the tests of this file; none of them may move a slot."""
    if kind not in _clusters:
        _clusters[kind] = _outside_of_loops(Cluster(kind).__aenter__())
    return _clusters[kind]


def _outside_of_loops(work):
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.fixture
def three(cluster, queue_name) -> list[str]:
    """A queue on each node."""
    found = {}
    for at in range(200):
        name = f"{queue_name}-{at}"
        found.setdefault(port_of(cluster.owner_at_start(name).url), name)
    assert len(found) == 3
    return sorted(found.values())


async def double(job):
    return job.data * 2


async def test_jobs_run_on_whichever_node_their_queue_is(cluster, three):
    for name in three:
        options = {"redis_url": cluster.url, "claim_min_idle_ms": 1000, "store_results": True}
        running = RunningWorker(Worker(name, double, **options))
        async with Queue(name, redis_url=cluster.url) as queue:
            now = await queue.add("n", 1)
            later = await queue.add("n", 2, delay_ms=50, job_id="later")
            await queue.add("every", 3, repeat=RepeatPattern.every(60_000))

            assert await queue.wait_for_result(now.id, timeout=10) == 2
            assert await queue.wait_for_result(later.id, timeout=10) == 4
            assert (await queue.counts()).repeatable == 1
        await running.stop()


async def test_idle_workers_are_woken_on_whichever_node_their_queue_is(cluster, three):
    """By a job that is due soon, and by jobs that another hands back."""
    for name in three:
        gate, taken = asyncio.Event(), []

        async def blocks(job, gate=gate):
            await gate.wait()

        async def takes(job, taken=taken):
            taken.append(job.data)

        options = {"redis_url": cluster.url}
        leaver = RunningWorker(Worker(name, blocks, concurrency=1, read_count=4, **options))
        async with Queue(name, redis_url=cluster.url) as queue:
            await queue.add_bulk([{"name": "n", "data": at} for at in range(3)])
            await eventually(lambda leaver=leaver: leaver.worker.health().waiting == 2)
            heir = RunningWorker(Worker(name, takes, **options))
            await heir.until_consuming()
            await eventually(lambda heir=heir: is_asleep(heir))
            leaver.worker.request_stop()
            await eventually(lambda taken=taken: len(taken) == 2, within_s=1)
            gate.set()
            await leaver.task
            await eventually(
                lambda heir=heir: heir.worker._session.pipeline.upkeep.promoter.is_leader
            )
            await eventually(lambda heir=heir: hears(heir))
            await queue.add("n", "later", delay_ms=100)
            await eventually(lambda taken=taken: "later" in taken, within_s=0.5)
            assert heir.worker._session.pipeline.upkeep.promoter._polls_until_s == 0
        await heir.stop()


def is_asleep(running: RunningWorker) -> bool:
    return running.worker._session.pipeline.reader.can_be_woken


def hears(running: RunningWorker) -> bool:
    return running.worker._session.pipeline.upkeep.promoter._bell.is_awake


async def test_upkeep_promotes_on_whichever_node_its_queue_is(cluster, three):
    for name in three:
        async with Queue(name, redis_url=cluster.url) as queue:
            await queue.add("n", 1, delay_ms=20)
            upkeep = Upkeep(name, redis_url=cluster.url)
            running = asyncio.create_task(upkeep.run())

            async def is_ready(queue=queue) -> bool:
                return (await queue.counts()).ready == 1

            await eventually(is_ready)
            await upkeep.close()
            await running


async def test_an_inspector_sees_the_queues_of_every_node(cluster, three):
    for name in three:
        async with Queue(name, redis_url=cluster.url) as queue:
            await queue.add("n", 1)
            await queue.add("n", 2, delay_ms=60_000)

    async with Inspector(redis_url=cluster.url) as inspector:
        assert set(three) <= set(await inspector.queues())
        survey = await inspector.survey(three[::-1])
        assert [one.queue for one in survey.snapshots] == three[::-1]
        assert [one.stream_depth for one in survey.snapshots] == [1, 1, 1]
        assert [len(await inspector.delayed(name)) for name in three] == [1, 1, 1]
        findings = await inspector.diagnose_server()
        assert {one.found.split(": ")[0] for one in findings} == {
            f"127.0.0.1:{port_of(node.url)}" for node in cluster.nodes
        }


async def test_commands_take_the_url_of_a_cluster(cluster, three, say):
    for name in three:
        code, out, err = await say("add", name, "n", "1", "--redis-url", cluster.url)
        assert (code, out.count("\n")) == (0, 1)
        # Their names are alike, which is worth a warning and nothing else.
        assert err == "" or err.startswith(f"warning: there was no queue named {name!r}, ")

    _, out, _ = await say("queues", "--json", "--redis-url", cluster.url)
    assert set(three) <= {row["queue"] for row in json.loads(out)}
    for command in (["inspect"], ["doctor"], ["workers"], ["delayed", "list"], ["dlq", "peek"]):
        code, _, err = await say(*command, three[0], "--json", "--redis-url", cluster.url)
        assert (code in (0, 1), err) == (True, ""), command
    code, out, _ = await say("metrics", *three, "--redis-url", cluster.url)
    assert (code, all(f'queue="{name}"' in out for name in three)) == (0, True)


async def test_events_of_queues_on_different_nodes_come_through_one_tail(cluster, three):
    async with QueueEvents(three, redis_url=cluster.url, last_event_id="0", block_ms=200) as tail:
        for name in three:
            async with Queue(name, redis_url=cluster.url, events_enabled=True) as queue:
                await queue.add("n", 1, delay_ms=60_000)

        heard = [await asyncio.wait_for(anext(tail), 10) for _ in three]

        assert sorted(event.queue for event in heard) == three
        assert all(after != "0" for after in tail.last_event_ids.values())


async def test_many_links_of_an_inspector_make_room_for_each_other(cluster, queue_name):
    links = ClusterConnections(ConnectionSettings(url=cluster.url), name="test")
    names = [f"{queue_name}-{at}" for at in range(20)]
    opened = [await links.of(name) for name in names]
    for name in names:
        assert await (await links.of(name)).call("EXISTS", QueueKeys(name).stream) == 0

    assert [link.is_up for link in opened] == [False] * 4 + [True] * 16
    assert await links.of(names[-1]) is opened[-1]
    await links.close()


async def test_a_thread_reaches_the_owner_of_its_queue_too(cluster, three):
    for name in three:
        connection = BlockingConnection(ConnectionSettings(url=cluster.url, queue=name))
        assert await asyncio.to_thread(connection.call, "XLEN", QueueKeys(name).stream) == 0
        connection.close()


async def test_readers_for_threads_see_the_queues_of_every_node(cluster, three, queue_name):
    for name in three:
        async with Queue(name, redis_url=cluster.url, events_enabled=True) as queue:
            await queue.add("n", 1, delay_ms=60_000)
    settings = ConnectionSettings(url=cluster.url)
    store, sampler = RangeStore(settings), ServerSampler(settings)

    def look():
        keys = [QueueKeys(name).events for name in three]
        facts = [one.length for one in store.facts(keys)]
        read = [len(store.entries(key, "0-0", "+", 10)) for key in keys]
        delayed = [one.delayed for one in sampler.sample(three)]
        return facts, read, delayed, store.queues(f"{queue_name}-*", "events")

    try:
        found = await asyncio.to_thread(look)
    finally:
        store.close()
        sampler.close()

    assert found == ([1, 1, 1], [1, 1, 1], [1, 1, 1], three)


async def test_the_url_of_one_wrong_node_is_refused_with_the_right_kind_of_url(cluster, three):
    wrong = next(node for node in cluster.nodes if node is not cluster.owner_at_start(three[0]))

    async with Queue(three[0], redis_url=wrong.url) as queue:
        with pytest.raises(ServerRefused, match=r"MOVED .*redis\+cluster://"):
            await asyncio.wait_for(queue.add("n", 1), 10)


async def test_a_server_that_is_alone_is_no_cluster(proxy, say):
    alone = proxy.url.replace("redis://", f"redis+cluster://:{SECRET}@")
    plain = proxy.url.replace("redis://", "redis+cluster://")

    code, _, err = await say("queues", "--redis-url", plain)

    assert code == 1
    assert "use redis:// for one server" in err
    assert "Traceback" not in err
    async with Queue("q", redis_url=alone) as queue:
        with pytest.raises((ServerUnreachable, ServerRefused)) as caught:
            await asyncio.wait_for(queue.add("n", 1), 10)
    assert SECRET not in str(caught.value)


async def test_sentinels_lead_to_the_master(kind, queue_name, say):
    async with Watched(kind, password=SECRET) as watched:
        async with Queue(queue_name, redis_url=watched.url) as queue:
            running = RunningWorker(Worker(queue_name, double, redis_url=watched.url))
            await queue.add("n", 1)
            await eventually(lambda: running.worker.health().completed == 1)
            await running.stop()
        code, _, err = await say("inspect", queue_name, "--redis-url", watched.url)
        assert (code, err) == (0, "")

        strange = watched.url.replace(f"/{MASTER}", "/nobody")
        code, _, err = await say("queues", "--redis-url", strange)
        assert (code, "must know the master 'nobody'" in err) == (1, True)
        assert SECRET not in err

        for wrong in (watched.url.partition("?")[0], watched.url + "x"):
            code, _, err = await say("queues", "--redis-url", wrong)
            assert (code, "sentinel_password" in err, SECRET in err) == (1, True, False)
            assert "Traceback" not in err


async def test_a_new_queue_is_made_while_another_master_is_away(kind, queue_name, say):
    async with Cluster(kind) as cluster:
        owner = cluster.owner_at_start(queue_name)
        other = next(node for node in cluster.nodes if node is not owner)
        await asyncio.to_thread(other.kill)

        code, _, err = await say("add", queue_name, "n", "1", "--redis-url", cluster.url)

    assert (code, err) == (0, "")
