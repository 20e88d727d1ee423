"""Another server takes over: what was promised is there, work goes on soon, and nobody spins."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from chasquimq import Queue, Worker
from chasquimq.errors import DurabilityNotMet, StoreError
from support.raw import Raw
from support.topologies import Cluster, ReplicaPair, Watched, info
from support.waiting import eventually, patience
from support.workers import RunningWorker

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
LEASE_MS = 1_000
RESUME_S_MAX = 10.0
# What the ladder allows one connection in the time that the test looks at it, and one more.
DIALS_MAX = 7
# A round mostly waits for copies that do not come; each has servers of its own.
ROUNDS_AT_ONCE = 5


class Traffic:
    """Adds to a queue without a pause, runs its jobs, and remembers both."""

    def __init__(self, url: str, queue: str, durability: str = "server") -> None:
        self._url = url
        self._name = queue
        self._durability = durability
        self.acknowledged: dict[str, float] = {}
        self.unmet: dict[str, float] = {}
        self.errors: list[StoreError] = []
        self.starts: dict[str, list[float]] = {}

    @asynccontextmanager
    async def running(self, *, has_worker: bool = True):
        """Add, and work, for as long as the block lasts; what runs at its end is waited for."""
        worker = RunningWorker(self._worker()) if has_worker else None
        async with Queue(self._name, redis_url=self._url, durability=self._durability) as queue:
            self._is_over = False
            adding = [asyncio.create_task(self._add(queue, at)) for at in range(4)]
            try:
                yield self
            finally:
                self._is_over = True
                await asyncio.wait_for(asyncio.gather(*adding), 40)
                if worker is not None:
                    await self._drained(queue)
                    await worker.stop()

    async def until_acknowledged(self, count: int, *, after_s: float = 0.0) -> float:
        """Wait for that many adds since a moment; the answer is how long after it they were."""

        def are_enough() -> bool:
            return sum(at_s > after_s for at_s in self.acknowledged.values()) >= count

        await eventually(are_enough, within_s=30, what=f"{count} adds")
        return time.monotonic() - after_s

    async def until_answered(self, *, after_s: float) -> float:
        """Wait for an add that ended since a moment, safe or not; the answer is how long after."""

        def is_answered() -> bool:
            return any(
                at_s > after_s for at_s in (*self.acknowledged.values(), *self.unmet.values())
            )

        await eventually(is_answered, within_s=30, what="an add")
        return time.monotonic() - after_s

    async def until_started(self, count: int, *, after_s: float) -> float:
        def are_enough() -> bool:
            return sum(max(at_s) > after_s for at_s in self.starts.values()) >= count

        await eventually(are_enough, within_s=30, what=f"{count} starts")
        return time.monotonic() - after_s

    @property
    def extra_starts(self) -> int:
        return sum(map(len, self.starts.values())) - len(self.starts)

    def _worker(self) -> Worker:
        async def note(job) -> None:
            self.starts.setdefault(job.id, []).append(time.monotonic())

        return Worker(
            self._name, note, redis_url=self._url, concurrency=10, claim_min_idle_ms=LEASE_MS
        )

    async def _add(self, queue: Queue, number: int) -> None:
        while not self._is_over:
            try:
                job = await queue.add("n", number)
            except DurabilityNotMet as error:
                self.unmet |= dict.fromkeys(error.job_ids, time.monotonic())
            except StoreError as error:
                self.errors.append(error)
            else:
                self.acknowledged[job.id] = time.monotonic()
            await asyncio.sleep(0.002)

    async def _drained(self, queue: Queue) -> None:
        async def is_empty() -> bool:
            return (await queue.counts()).backlog == 0

        await eventually(is_empty, within_s=30, what="an empty queue")


async def stored(url: str, queue: str) -> set[str]:
    """Ids of the jobs that are in the stream of a server."""
    from chasquimq.wire.envelope import split_envelope

    raw = await Raw.open(url, queue)
    try:
        entries = await raw.entries(raw.keys.stream)
        return {split_envelope(fields[b"d"])[0].id for _, fields in entries}
    finally:
        await raw.close()


async def fail_over(pair: ReplicaPair) -> float:
    """The primary dies and the replica takes its place; the answer is when that was done."""
    await asyncio.to_thread(pair.primary.kill)
    await pair.promote()
    pair.address.lead_to(pair.replica.url)
    pair.address.cut()
    return time.monotonic()


@pytest.mark.timeout(3_600 if IS_BIG else 120)
@pytest.mark.parametrize("rounds", [200 if IS_BIG else 1])
async def test_class_replica_loses_no_acknowledged_add(kind, queue_name, rounds):
    told = Counter()
    for at in range(0, rounds, ROUNDS_AT_ONCE):
        beside = range(at, min(at + ROUNDS_AT_ONCE, rounds))
        for one in await asyncio.gather(*[_replica_round(kind, queue_name) for _ in beside]):
            told += one

    print(f"{kind.label}: replica:1, {rounds} failovers, {dict(told)}")
    assert told["acknowledged"] >= 100 * rounds
    assert told["lost"] == 0
    assert told["errors"] == 0
    # Whatever was told as written is there, on the server that leads now.
    assert told["unmet_lost"] == 0
    assert told["slow"] == 0


async def _replica_round(kind, queue_name) -> Counter[str]:
    """What one failover told, after the wire to the replica was cut."""
    traffic = Traffic("", queue_name, "replica:1")
    async with ReplicaPair(kind) as pair:
        traffic._url = pair.url
        async with traffic.running(has_worker=False):
            await traffic.until_acknowledged(100)
            pair.cut_wire()
            await asyncio.sleep(0.3)
            promoted_s = await fail_over(pair)
            resumed_s = await traffic.until_answered(after_s=promoted_s)
        kept = await stored(pair.replica.url, queue_name)
    return Counter(
        acknowledged=len(traffic.acknowledged),
        lost=len(set(traffic.acknowledged) - kept),
        unmet=len(traffic.unmet),
        unmet_lost=len(set(traffic.unmet) - kept),
        errors=len(traffic.errors),
        slow=resumed_s > RESUME_S_MAX * patience(),
    )


async def test_class_server_loses_what_the_replica_had_not_heard_of(kind, queue_name):
    async with ReplicaPair(kind) as pair, Queue(queue_name, redis_url=pair.url) as queue:
        before = await queue.add_bulk([{"name": "n", "data": at} for at in range(200)])
        await eventually(lambda: _count(pair.replica.url, queue_name, 200))
        pair.cut_wire()
        after = await queue.add_bulk([{"name": "n", "data": at} for at in range(50)])
        await fail_over(pair)
        await queue.add("n", "next")
        kept = await stored(pair.replica.url, queue_name)

    lost = {job.id for job in (*before, *after)} - kept
    print(f"{kind.label}: server, 250 acknowledged, {len(lost)} lost, all after the cut")
    assert lost == {job.id for job in after}
    assert len(kept) == 201


async def _count(url: str, queue: str, wanted: int) -> bool:
    return len(await stored(url, queue)) == wanted


@pytest.mark.parametrize("durability", ["server", "replica:1"])
async def test_an_add_whose_reply_a_failover_took_is_there_once(kind, queue_name, durability):
    async with ReplicaPair(kind) as pair:
        async with Queue(queue_name, redis_url=pair.url, durability=durability) as queue:
            first = await queue.add("n", 0)
            pair.address.drop_replies()
            second = asyncio.create_task(queue.add("n", 1))
            await eventually(lambda: _count(pair.replica.url, queue_name, 2))
            await fail_over(pair)
            pair.address.thaw()

            if durability == "server":
                assert (await asyncio.wait_for(second, 20)).id != first.id
            else:
                with pytest.raises(DurabilityNotMet):
                    await asyncio.wait_for(second, 20)

        assert len(await stored(pair.replica.url, queue_name)) == 2
        raw = await Raw.open(pair.replica.url, queue_name)
        assert await raw("XLEN", raw.keys.stream) == 2
        await raw.close()


async def test_work_goes_on_after_a_failover(kind, queue_name):
    async with ReplicaPair(kind) as pair:
        traffic = Traffic(pair.url, queue_name)
        async with traffic.running():
            await traffic.until_acknowledged(100)
            promoted_s = await fail_over(pair)
            added_s = await traffic.until_acknowledged(10, after_s=promoted_s)
            started_s = await traffic.until_started(10, after_s=promoted_s)
        dials = pair.address.accept_count
        lost = set(traffic.acknowledged) - set(traffic.starts)

    print(
        f"{kind.label}: failover under load, {len(traffic.acknowledged)} acknowledged, {len(lost)} "
        f"lost, {traffic.extra_starts} extra starts, adds after {added_s:.2f} s, starts after "
        f"{started_s:.2f} s, {dials} dials of 4 connections"
    )
    assert max(added_s, started_s) <= RESUME_S_MAX * patience()
    assert traffic.errors == []
    assert dials <= 4 * DIALS_MAX
    # Only what was acknowledged in the last moments can be missing.
    assert all(promoted_s - traffic.acknowledged[one] < 2 for one in lost)


async def test_a_primary_that_was_made_a_replica_is_left_and_not_dialled_to_death(kind, queue_name):
    async with ReplicaPair(kind) as pair:
        traffic = Traffic(pair.url, queue_name)
        async with traffic.running():
            await traffic.until_acknowledged(50)
            dials_before = pair.address.accept_count
            await pair.promote()
            await pair.demote_old()
            await asyncio.sleep(1.5)
            dials = pair.address.accept_count - dials_before
            refusals = await _refusals(pair.primary.url)
            pair.address.lead_to(pair.replica.url)
            led_s = time.monotonic()
            added_s = await traffic.until_acknowledged(5, after_s=led_s)
            started_s = await traffic.until_started(5, after_s=led_s)

    print(
        f"{kind.label}: 1.5 s of READONLY: {dials} dials of 4 connections, {refusals} refusals; "
        f"adds after {added_s:.2f} s, starts after {started_s:.2f} s"
    )
    assert 4 <= dials <= 4 * DIALS_MAX
    assert refusals <= 4 * DIALS_MAX * 4
    assert max(added_s, started_s) <= RESUME_S_MAX * patience()
    assert traffic.errors == []


async def _refusals(url: str, code: str = "READONLY") -> int:
    about = await info(url, "errorstats")
    return int(about.get(f"errorstat_{code}", "count=0").partition("=")[2])


async def _told(url: str) -> dict[str, int]:
    return {code: await _refusals(url, code) for code in ("ASK", "TRYAGAIN", "MOVED")}


@pytest.mark.timeout(240 if IS_BIG else 120)
@pytest.mark.parametrize("rounds", [3 if IS_BIG else 1])
async def test_work_goes_on_where_sentinels_say(kind, queue_name, rounds):
    # One who is soon taken for dead is so by mistake, too, once there is a way back.
    async with Watched(kind, down_after_ms=1_000 if IS_BIG else 300) as watched:
        traffic = Traffic(watched.url, queue_name)
        async with traffic.running():
            for _ in range(rounds):
                await traffic.until_acknowledged(50, after_s=time.monotonic())
                await watched.until_settled()
                killed_s, promoted_s = await _sentinel_failover(watched)
                added_s = await traffic.until_acknowledged(10, after_s=promoted_s)
                started_s = await traffic.until_started(10, after_s=promoted_s)
                print(
                    f"{kind.label}: Sentinels promoted after {promoted_s - killed_s:.2f} s, adds "
                    f"{added_s:.2f} s and starts {started_s:.2f} s later"
                )
                assert max(added_s, started_s) <= RESUME_S_MAX * patience()
    lost = set(traffic.acknowledged) - set(traffic.starts)
    print(
        f"{kind.label}: {rounds} failovers, {len(traffic.acknowledged)} acknowledged, {len(lost)} "
        f"lost, {traffic.extra_starts} extra starts"
    )
    assert traffic.errors == []


async def _sentinel_failover(watched: Watched) -> tuple[float, float]:
    servers = {int(one.url.rsplit(":", 1)[1].strip("/")): one
               for one in (watched.primary, watched.replica)}  # fmt: skip
    old = await watched.leader_port()
    await asyncio.to_thread(servers[old].kill)
    killed_s = time.monotonic()

    async def has_changed() -> bool:
        return await watched.leader_port() != old

    await eventually(has_changed, within_s=30, what="a new master")
    promoted_s = time.monotonic()
    if IS_BIG:
        await asyncio.to_thread(servers[old].start)
    return killed_s, promoted_s


@pytest.mark.timeout(240 if IS_BIG else 120)
@pytest.mark.parametrize("rounds", [6 if IS_BIG else 1])
async def test_a_queue_whose_slot_moves_loses_and_doubles_nothing(kind, queue_name, rounds):
    async with Cluster(kind) as cluster:
        traffic = Traffic(cluster.url, queue_name)
        source = cluster.owner_at_start(queue_name)
        other = next(node for node in cluster.nodes if node is not source)
        async with traffic.running():
            for at in range(rounds):
                await traffic.until_acknowledged(50, after_s=time.monotonic())
                here, there = (source, other) if at % 2 == 0 else (other, source)
                await cluster.move(queue_name, here, there, pause_s=0.5)
                moved_s = time.monotonic()
                added_s = await traffic.until_acknowledged(10, after_s=moved_s)
                started_s = await traffic.until_started(10, after_s=moved_s)
                print(
                    f"{kind.label}: slot moved, adds {added_s:.2f} s, starts {started_s:.2f} s later"
                )
                assert max(added_s, started_s) <= RESUME_S_MAX * patience()
        lost = set(traffic.acknowledged) - set(traffic.starts)
        told = [await _told(node.url) for node in (source, other)]

    print(
        f"{kind.label}: {rounds} moves, {len(traffic.acknowledged)} acknowledged, {len(lost)} lost, "
        f"{traffic.extra_starts} extra starts, {len(traffic.errors)} errors; nodes said {told}"
    )
    assert told[0]["ASK"] + told[0]["TRYAGAIN"] > 0
    assert told[0]["MOVED"] > 0
    # Some who ask, each every twentieth of a second; who spins asks thousands of times.
    assert sum(sum(one.values()) for one in told) <= rounds * 500
    assert lost == set()
    assert traffic.extra_starts == 0
    assert traffic.errors == []


@pytest.mark.skipif(not IS_BIG, reason="takes long; CHASQUI_TEST_BIG=1 runs it")
async def test_a_slot_that_moves_at_once_loses_and_doubles_nothing(kind, queue_name):
    async with Cluster(kind) as cluster:
        traffic = Traffic(cluster.url, queue_name)
        source = cluster.owner_at_start(queue_name)
        other = next(node for node in cluster.nodes if node is not source)
        async with traffic.running():
            await traffic.until_acknowledged(200)
            await cluster.move_at_once(queue_name, source, other)
            moved_s = time.monotonic()
            added_s = await traffic.until_acknowledged(10, after_s=moved_s)
            started_s = await traffic.until_started(10, after_s=moved_s)
        lost = set(traffic.acknowledged) - set(traffic.starts)

    print(
        f"{kind.label}: slot moved at once, {len(traffic.acknowledged)} acknowledged, {len(lost)} "
        f"lost, adds {added_s:.2f} s, starts {started_s:.2f} s later"
    )
    assert lost == set()
    assert traffic.extra_starts == 0
    assert traffic.errors == []


@pytest.mark.skipif(not IS_BIG, reason="takes long; CHASQUI_TEST_BIG=1 runs it")
@pytest.mark.timeout(180)
async def test_the_replica_of_a_dead_node_is_found(kind, queue_name):
    async with Cluster(kind) as cluster:
        owner = cluster.owner_at_start(queue_name)
        replica = await cluster.add_replica(owner)
        traffic = Traffic(cluster.url, queue_name)
        async with traffic.running():
            await traffic.until_acknowledged(200)
            await asyncio.to_thread(owner.kill)
            killed_s = time.monotonic()
            await cluster.until_owned(queue_name, replica)
            promoted_s = time.monotonic()
            added_s = await traffic.until_acknowledged(10, after_s=promoted_s)
            started_s = await traffic.until_started(10, after_s=promoted_s)

    print(
        f"{kind.label}: a node died, its replica led after {promoted_s - killed_s:.2f} s, adds "
        f"{added_s:.2f} s, starts {started_s:.2f} s later"
    )
    assert max(added_s, started_s) <= RESUME_S_MAX * patience()
    assert traffic.errors == []
