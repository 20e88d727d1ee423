"""An idle worker leaves its server in peace, and is at work at once when there is some."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from chasquimq import Queue, Worker
from chasquimq.settings import RetrySettings, UpkeepSettings
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.stream_entry import encode_member
from chasquimq.worker.upkeep import Upkeep
from support.monitor import Monitor
from support.raw import Raw
from support.waiting import eventually, patience
from support.workers import RunningWorker

WATCHED_S = 15
LEADER_CALLS_PER_S, FOLLOWER_CALLS_PER_S = 2, 1
HOUR_MS = 3_600_000
LATE_MS_MAX = 120
# A server that nobody else asks anything.
pytestmark = pytest.mark.own_server


async def noop(job):
    return


async def fails_at_first(job):
    if job.attempt == 0:
        raise ValueError("at first")


async def until_idle(*running: RunningWorker) -> None:
    """Return when each blocks in a read that it can be woken from."""

    def is_idle(one: RunningWorker) -> bool:
        return one.worker._session.pipeline.reader.can_be_woken

    await eventually(lambda: all(map(is_idle, running)), what="an idle worker")
    await asyncio.sleep(0.1)


async def until_asleep(*running: RunningWorker) -> None:
    """Return when the promoter of one of them sleeps, and hears its bell."""

    def is_heard(one: RunningWorker) -> bool:
        return one.worker._session.pipeline.upkeep.promoter._bell.is_awake

    await eventually(lambda: any(map(is_heard, running)), what="a promoter at its bell")
    await until_idle(*running)


def is_polling(running: RunningWorker) -> bool:
    """Whether its promoter believes that somebody adds without ringing."""
    return running.worker._session.pipeline.upkeep.promoter._polls_until_s > 0


async def calls_of(url: str) -> Counter[str]:
    async with Monitor(url) as monitor:
        await asyncio.sleep(WATCHED_S)
        return Counter(monitor.calls)


async def hold_locks(raw) -> None:
    """Lead as another worker would, which renews its locks in time."""
    while True:
        for lock in (raw.keys.promoter_lock, raw.keys.scheduler_lock):
            await raw("SET", lock, "somebody", "EX", 5)
        await asyncio.sleep(2.5)


@asynccontextmanager
async def alone(start_server) -> AsyncIterator[tuple[str, Raw]]:
    """A server that nobody else asks anything, and a look at the queue `idle`."""
    url = start_server().url
    raw = await Raw.open(url, "idle")
    yield url, raw
    await raw.close()


@asynccontextmanager
async def at_work(url: str, handler) -> AsyncIterator[RunningWorker]:
    running = RunningWorker(Worker("idle", handler, redis_url=url))
    await running.until_consuming()
    yield running
    await running.stop()


async def calls_of_a_leader(start_server, *, has_worked: bool) -> Counter[str]:
    async with alone(start_server) as (url, raw), at_work(url, fails_at_first) as running:
        await eventually(lambda: raw("EXISTS", raw.keys.promoter_lock, raw.keys.scheduler_lock))
        await until_asleep(running)
        if has_worked:
            delayed = [{"name": "n", "data": 1, "delay_ms": at * 20} for at in range(50)]
            async with Queue("idle", redis_url=url) as queue:
                await queue.add_bulk(delayed)
                await eventually(lambda: running.worker.health().completed == 50)
            await asyncio.sleep(3)
        return await calls_of(url)


async def calls_of_a_follower(start_server) -> Counter[str]:
    async with alone(start_server) as (url, raw):
        leading = asyncio.create_task(hold_locks(raw))
        await eventually(lambda: raw("EXISTS", raw.keys.scheduler_lock))
        async with at_work(url, noop) as running:
            await until_idle(running)
            calls = await calls_of(url)
            leading.cancel()
    calls.pop("SET")
    return calls


async def test_an_idle_worker_sends_few_calls(start_server, kind):
    """A leader that is fresh, one that has worked, and a follower, watched at the same time."""
    fresh, worked, follower = await asyncio.gather(
        calls_of_a_leader(start_server, has_worked=False),
        calls_of_a_leader(start_server, has_worked=True),
        calls_of_a_follower(start_server),
    )

    for who, calls in {"fresh": fresh, "worked": worked, "follower": follower}.items():
        print(f"{kind.label}: {who} sends {calls.total() / WATCHED_S:.2f}/s: {dict(calls)}")
    assert fresh.total() <= LEADER_CALLS_PER_S * WATCHED_S
    assert worked.total() <= LEADER_CALLS_PER_S * WATCHED_S
    assert follower.total() <= FOLLOWER_CALLS_PER_S * WATCHED_S


async def test_a_sleeping_promoter_is_woken_by_each_earlier_job(queue, running_worker, kind):
    late_ms = []

    async def handler(job):
        late_ms.append(time.time() * 1000 - job.delivery.due_ms)

    running = await running_worker(handler)
    await queue.add("later", 1, delay_ms=HOUR_MS)
    await until_asleep(running)
    dice, count = random.Random(4), 200
    for _ in range(count):
        await queue.add("sooner", 1, delay_ms=dice.randrange(1, 1_500))
        await asyncio.sleep(dice.uniform(0, 0.04))

    await eventually(lambda: len(late_ms) == count)
    p99_ms = sorted(late_ms)[int(count * 0.99) - 1]
    print(f"{kind.label}: of {count} delayed jobs 99 % are late by at most {p99_ms:.0f} ms")
    assert min(late_ms) > -1
    assert not is_polling(running)
    assert p99_ms <= LATE_MS_MAX * patience()


async def test_a_job_that_is_added_to_an_empty_set_is_in_time(queue, running_worker, kind):
    late_ms = []

    async def handler(job):
        late_ms.append(time.time() * 1000 - job.delivery.due_ms)

    running = await running_worker(handler)
    for count in range(1, 6):
        await until_asleep(running)
        await queue.add("later", 1, delay_ms=700, job_id=f"own-{count}" if count % 2 else None)
        await eventually(lambda: len(late_ms) == count)  # noqa: B023  awaited at once

    print(f"{kind.label}: jobs for a sleeping promoter are late by {max(late_ms):.0f} ms at most")
    assert max(late_ms) <= LATE_MS_MAX * patience()


async def test_a_retry_wakes_a_sleeping_promoter(queue, running_worker):
    started_s = []

    async def fails_once(job):
        started_s.append(time.monotonic())
        if len(started_s) == 1:
            raise ValueError("once")

    retry = RetrySettings(initial_backoff_ms=200, jitter_ms=0)
    running = await running_worker(fails_once, retry=retry)
    await until_asleep(running)
    await queue.add("n", 1)

    await eventually(lambda: len(started_s) == 2)
    late_ms = (started_s[1] - started_s[0]) * 1000 - 200
    assert late_ms <= (LATE_MS_MAX + 50) * patience()


async def test_a_producer_that_rings_no_bell_is_noticed_and_looked_after(raw, running_worker, kind):
    late_ms = []

    async def handler(job):
        late_ms.append(time.time() * 1000 - job.delivery.due_ms)

    running = await running_worker(handler)
    await until_asleep(running)
    for number in range(30):
        member = encode_member("n", encode_envelope(f"job-{number}", b"\x01", 1))
        due_ms = int(time.time() * 1000) + 300
        await raw("ZADD", raw.keys.delayed, due_ms, member)
        await asyncio.sleep(0.2)

    await eventually(lambda: len(late_ms) == 30)
    assert is_polling(running)
    print(
        f"{kind.label}: the first is {late_ms[0]:.0f} ms late, the last 15 {max(late_ms[15:]):.0f}"
    )
    assert max(late_ms) <= 3_000 * patience()
    assert max(late_ms[15:]) <= 200 * patience()


async def test_a_promoter_whose_bell_is_cut_off_looks_by_itself_at_once(
    url, queue, queue_name, raw
):
    upkeep = Upkeep(queue_name, redis_url=url, settings=UpkeepSettings(lock_ttl_s=60))
    running = asyncio.create_task(upkeep.run())
    await eventually(lambda: upkeep._loops.promoter._bell.is_awake, what="a promoter at its bell")
    await asyncio.sleep(0.5)

    for line in (await raw("CLIENT", "LIST")).decode().splitlines():
        if "name=chasqui-bell" in line:
            await raw("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id="))
    await queue.add("soon", 1, delay_ms=300)

    async def is_ready():
        return (await queue.counts()).ready == 1

    await eventually(is_ready, within_s=3)
    await upkeep.close()
    await running


async def test_what_is_handed_back_wakes_an_idle_worker(queue, running_worker, kind):
    gate, taken_s = asyncio.Event(), []

    async def blocks(job):
        await gate.wait()

    async def takes(job):
        taken_s.append(time.monotonic())

    leaver = await running_worker(blocks, concurrency=1, read_count=30)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(20)])
    await eventually(lambda: leaver.worker.health().waiting == 19)
    heir = await running_worker(takes)
    await until_idle(heir)

    leaver.worker.request_stop()
    asked_s = time.monotonic()
    await eventually(lambda: len(taken_s) == 19)
    gate.set()

    print(f"{kind.label}: the last of 19 was taken over after {taken_s[-1] - asked_s:.2f} s")
    assert taken_s[-1] - asked_s < 1 * patience()


async def test_more_than_one_has_room_for_is_shared_by_all_that_are_idle(
    queue, running_worker, kind
):
    gate = asyncio.Event()

    async def blocks(job):
        await gate.wait()

    leaver = await running_worker(blocks, concurrency=1, read_count=60)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(41)])
    await eventually(lambda: leaver.worker.health().waiting == 40)
    heirs = [await running_worker(blocks, concurrency=4) for _ in range(3)]
    await until_idle(*heirs)

    leaver.worker.request_stop()
    asked_s = time.monotonic()
    await eventually(lambda: all(one.worker.health().running == 4 for one in heirs))
    shared_s = time.monotonic() - asked_s
    gate.set()

    print(f"{kind.label}: three idle workers were busy after {shared_s:.2f} s")
    assert shared_s < 1 * patience()


async def test_an_idle_follower_leads_as_soon_as_the_leader_leaves(
    queue, raw, running_worker, kind
):
    leader = await running_worker(noop)
    first = await eventually(lambda: raw("GET", raw.keys.promoter_lock))
    follower = await running_worker(noop)
    await until_idle(follower)

    await leader.stop()
    left_s = time.monotonic()
    await eventually(lambda: raw("GET", raw.keys.promoter_lock))
    led_s = time.monotonic() - left_s

    print(f"{kind.label}: another leads after {led_s:.2f} s")
    assert await raw("GET", raw.keys.promoter_lock) != first
    assert led_s < 1 * patience()


async def test_a_worker_that_may_not_be_woken_reads_more_often_instead(
    queue, raw, queue_name, url, kind
):
    keys = raw.keys.stream.removesuffix("stream")
    await raw("ACL", "SETUSER", "fenced", "on", ">pw", f"~{keys}[^w]*", "+@all")
    parts = urlsplit(url)
    fenced_url = parts._replace(netloc=f"fenced:pw@{parts.netloc}").geturl()
    gate, taken_s = asyncio.Event(), []

    async def blocks(job):
        await gate.wait()

    async def takes(job):
        taken_s.append(time.monotonic())

    leaver = RunningWorker(Worker(queue_name, blocks, redis_url=fenced_url, concurrency=1))
    await leaver.until_consuming()
    await queue.add_bulk([{"name": "n", "data": at} for at in range(2)])
    await eventually(lambda: leaver.worker.health().waiting == 1)
    # Not before: it would take one of the two.
    heir = RunningWorker(Worker(queue_name, takes, redis_url=fenced_url))
    await heir.until_consuming()
    await eventually(lambda: heir.worker._session.pipeline.reader._is_idle)
    leaver.worker.request_stop()
    asked_s = time.monotonic()
    await eventually(lambda: taken_s)
    gate.set()
    await leaver.task
    await heir.stop()

    assert taken_s[0] - asked_s < 1 * patience()
    assert heir.worker.health().loops_down == {}


@pytest.mark.parametrize("act", ["stream", "wake"])
async def test_an_idle_worker_outlives_the_loss_of_its_keys(queue, raw, running_worker, act):
    seen = []

    async def handler(job):
        seen.append(job.data)

    running = await running_worker(handler)
    await until_idle(running)
    await raw("DEL", getattr(raw.keys, act))
    await queue.add("n", 1)

    await eventually(lambda: seen == [1], within_s=2)
    await until_idle(running)


async def test_a_stream_of_calls_that_is_none_costs_no_job(queue, raw, running_worker):
    seen = []

    async def handler(job):
        seen.append(job.data)

    running = await running_worker(handler)
    await until_idle(running)
    await raw("SET", raw.keys.wake, "no stream")
    await queue.add("n", 1)
    await eventually(lambda: seen == [1])
    await asyncio.sleep(1)
    await queue.add("n", 2)

    await eventually(lambda: seen == [1, 2], within_s=2)
    await eventually(lambda: running.worker.health().is_ok)
    assert not running.worker._session.pipeline.reader.can_be_woken
