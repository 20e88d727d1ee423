"""A password changes on the server: few logins are denied, one line says why, and all come back."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from chasquimq import Queue, QueueEvents, Upkeep, Worker
from chasquimq.errors import ChasquiError, ServerRefused
from chasquimq.queue.inspector import Inspector
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection
from support.raw import Raw
from support.topologies import Cluster
from support.waiting import eventually
from support.workers import RunningWorker

OLD, NEW = "old-secret", "new-secret"
USER = "courier"
# Of the ladder, these fit into the time that a test looks: five at most, and the next is near.
WATCHED_S = 5.0
DENIED_MAX = 6
# The longest pause of the ladder, and what a loop takes to be up again.
BACK_S_MAX = 8.0
pytestmark = pytest.mark.own_server(port=0)


@dataclass
class Guarded:
    """A server whose user has a password that changes."""

    raw: Raw
    url: str

    async def rotate(self) -> None:
        """Another password, and everybody out."""
        await self.raw("ACL", "SETUSER", USER, "resetpass", f">{NEW}")
        await self.raw("CLIENT", "KILL", "USER", USER)

    async def restore(self) -> None:
        await self.raw("ACL", "SETUSER", USER, "resetpass", f">{OLD}")

    async def denied(self) -> int:
        stats = (await self.raw("INFO", "errorstats")).decode()
        found = re.search(r"errorstat_WRONGPASS:count=(\d+)", stats)
        return int(found[1]) if found else 0

    async def cut_off(self, name: str) -> None:
        """Close the connections of that name."""
        clients = (await self.raw("CLIENT", "LIST")).decode().splitlines()
        for line in clients:
            if f"name={name}" in line.split():
                await self.raw("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id="))

    async def connection_count(self) -> int:
        clients = (await self.raw("CLIENT", "LIST")).decode()
        return clients.count(f"user={USER}")


@pytest.fixture
async def guarded(url, raw):
    await raw("ACL", "SETUSER", USER, "on", f">{OLD}", "~*", "&*", "+@all")
    return Guarded(raw, f"redis://{USER}:{OLD}@{urlsplit(url).netloc}")


def told(caplog) -> list[str]:
    """What a person would read about it."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class Handler:
    """Runs jobs; one that is called `held` goes on until it is let go."""

    def __init__(self) -> None:
        self.ran = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, job) -> None:
        if job.name == "held":
            await self.let_go.wait()
        else:
            self.ran.set()


async def _add(guarded: Guarded, queue_name: str, name: str) -> None:
    """As a user whose password stays."""
    async with Queue(queue_name, redis_url=guarded.url.replace(f"{USER}:{OLD}@", "")) as queue:
        await queue.add(name, 1)


async def test_a_worker_whose_password_was_rotated_keeps_to_the_ladder_and_comes_back(
    guarded, queue_name, caplog
):
    handler = Handler()
    worker = Worker(queue_name, handler, redis_url=guarded.url, claim_min_idle_ms=1_500)
    running = RunningWorker(worker)
    await running.until_consuming()
    await _add(guarded, queue_name, "held")
    # The bell of the promoter and the thread that renews leases have dialled, too.
    await eventually(lambda: _has(guarded, 4), what="four connections")
    caplog.clear()

    await guarded.rotate()
    await asyncio.sleep(WATCHED_S)

    assert 0 < await guarded.denied() <= 3 * DENIED_MAX
    causes = [line for line in told(caplog) if "must accept the credentials" in line]
    assert len(causes) == 1, told(caplog)
    assert OLD not in caplog.text

    await guarded.restore()
    restored_s = time.monotonic()
    await _add(guarded, queue_name, "n")
    await asyncio.wait_for(handler.ran.wait(), 60)
    assert time.monotonic() - restored_s <= BACK_S_MAX
    assert len([line for line in told(caplog) if "connected to" in line]) == 1
    handler.let_go.set()
    await running.stop()


@pytest.mark.takes_turns
async def test_a_thread_that_renews_leases_and_is_refused_alone_keeps_to_the_ladder(
    guarded, queue_name
):
    handler = Handler()
    worker = Worker(queue_name, handler, redis_url=guarded.url, claim_min_idle_ms=1_500)
    running = RunningWorker(worker)
    # The reader, the writer, the bell of the promoter, and the thread.
    await eventually(lambda: _has(guarded, 4), what="four connections")
    await _add(guarded, queue_name, "held")
    # Who is logged in stays so; the thread alone has to dial, and hears that others get through.
    await guarded.raw("ACL", "SETUSER", USER, "resetpass", f">{NEW}")
    await guarded.cut_off("chasqui-lease")

    await eventually(guarded.denied, what="a denied login")
    await asyncio.sleep(WATCHED_S)

    assert await guarded.denied() <= DENIED_MAX
    await guarded.restore()
    await eventually(lambda: _has(guarded, 4), within_s=BACK_S_MAX, what="a renewal")
    handler.let_go.set()
    await running.stop()


async def _has(guarded: Guarded, count: int) -> bool:
    return await guarded.connection_count() >= count


async def test_what_ran_when_the_password_was_rotated_is_settled_once_it_works_again(
    guarded, queue_name
):
    started, go_on, runs = asyncio.Event(), asyncio.Event(), []

    async def handle(job):
        runs.append(job.id)
        started.set()
        await go_on.wait()

    running = RunningWorker(Worker(queue_name, handle, redis_url=guarded.url))
    async with Queue(queue_name, redis_url=guarded.url) as queue:
        await queue.add("n", 1)
        await started.wait()
    await guarded.rotate()
    go_on.set()
    await eventually(guarded.denied, what="a denied login")
    await asyncio.sleep(1)
    await guarded.restore()

    async with Queue(queue_name, redis_url=guarded.url) as queue:

        async def is_settled() -> bool:
            counts = await queue.counts()
            return (counts.ready, counts.running) == (0, 0)

        await eventually(is_settled, within_s=BACK_S_MAX, what="a settled job")
    assert len(runs) == 1
    await running.stop()


@pytest.mark.takes_turns
async def test_upkeep_keeps_to_the_ladder(guarded, queue_name, caplog):
    upkeep = Upkeep(queue_name, redis_url=guarded.url)
    running = asyncio.create_task(upkeep.run())
    await eventually(lambda: upkeep.is_leader, what="a leader")

    await guarded.rotate()
    await asyncio.sleep(WATCHED_S)

    assert 0 < await guarded.denied() <= DENIED_MAX
    assert len([line for line in told(caplog) if "must accept the credentials" in line]) == 1
    await guarded.restore()
    async with Queue(queue_name, redis_url=guarded.url) as queue:
        await queue.add("n", 1, delay_ms=1)

        async def is_promoted() -> bool:
            return (await queue.counts()).ready == 1

        await eventually(is_promoted, within_s=BACK_S_MAX, what="a promoted job")
    await upkeep.close()
    await running


async def _hammered(call, seconds: float) -> set[str]:
    """Call as fast as it answers; what came of it."""
    until_s, heard = time.monotonic() + seconds, set[str]()
    while time.monotonic() < until_s:
        try:
            await call()
            heard.add("done")
        except ChasquiError as error:
            heard.add(f"{type(error).__name__}: {error}")
        await asyncio.sleep(0.01)
    return heard


@pytest.mark.parametrize("was_open", [True, False])
async def test_a_producer_that_is_refused_hears_why_each_time_and_dials_seldom(
    guarded, queue_name, was_open
):
    async with Queue(queue_name, redis_url=guarded.url) as queue:
        if was_open:
            await queue.add("n", 0)
        await guarded.rotate()

        heard = await _hammered(lambda: queue.add("n", 1), WATCHED_S)

        assert 0 < await guarded.denied() <= DENIED_MAX
        assert all("must accept the credentials" in one for one in heard), heard
        assert all(one.startswith(ServerRefused.__name__) for one in heard), heard
        assert OLD not in str(heard)
        await guarded.restore()
        await eventually(lambda: _adds(queue), within_s=BACK_S_MAX, what="an add")


async def test_each_node_of_a_cluster_is_tried_as_seldom(kind, queue_name, caplog):
    async with Cluster(kind) as cluster:
        nodes = [Guarded(await Raw.open(one.url, "q"), one.url) for one in cluster.nodes]
        for node in nodes:
            await node.raw("ACL", "SETUSER", USER, "on", f">{OLD}", "~*", "&*", "+@all")
        url = cluster.url.replace("://", f"://{USER}:{OLD}@")
        handler = Handler()
        running = RunningWorker(Worker(queue_name, handler, redis_url=url))
        await running.until_consuming()
        async with Inspector(redis_url=url) as inspector:
            assert await inspector.queues() == [queue_name]
            for node in nodes:
                await node.rotate()

            await _hammered(inspector.queues, WATCHED_S)

        # A reader, a writer, and the inspector that finds the nodes.
        denied = [await node.denied() for node in nodes]
        assert 0 < min(denied) <= max(denied) <= 3 * DENIED_MAX
        assert len([one for one in told(caplog) if "must accept the credentials" in one]) == 1
        for node in nodes:
            await node.restore()
        async with Queue(queue_name, redis_url=url) as queue:
            await queue.add("n", 1)
        await asyncio.wait_for(handler.ran.wait(), BACK_S_MAX)
        await running.stop()
        for node in nodes:
            await node.raw.close()


async def _adds(queue: Queue) -> bool:
    try:
        await queue.add("n", 2)
    except ServerRefused:
        return False
    return True


@pytest.mark.takes_turns
@pytest.mark.parametrize("was_open", [True, False])
async def test_a_thread_that_is_refused_dials_seldom(guarded, was_open):
    connection = BlockingConnection(ConnectionSettings(url=guarded.url))

    def ping():
        return asyncio.to_thread(connection.call, "PING")

    if was_open:
        await ping()
    await guarded.rotate()

    heard = await _hammered(ping, WATCHED_S)

    assert 0 < await guarded.denied() <= DENIED_MAX
    assert any("must accept the credentials" in one for one in heard)
    await guarded.restore()

    async def is_back() -> bool:
        return "done" in await _hammered(ping, 0.05)

    await eventually(is_back, within_s=BACK_S_MAX, what="an answer")
    connection.close()


@pytest.mark.takes_turns
async def test_a_reader_of_events_that_is_refused_dials_seldom(guarded, queue_name):
    async with QueueEvents(queue_name, redis_url=guarded.url, block_ms=100) as events:
        reading = asyncio.ensure_future(anext(events))
        await eventually(lambda: _has(guarded, 1), what="a reader")
        await guarded.rotate()
        await asyncio.wait([reading], timeout=2)

        heard = await _hammered(lambda: anext(events), WATCHED_S)

    reading.cancel()
    assert 0 < await guarded.denied() <= DENIED_MAX + 1
    assert any("must accept the credentials" in one for one in heard), heard
