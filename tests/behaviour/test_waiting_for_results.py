"""Waiting for results: woken by events, backed by a poll, and never longer than the queue is open."""

from __future__ import annotations

import asyncio
import time

import pytest

from chasquimq import Queue
from chasquimq.errors import StoreError
from chasquimq.queue import results as resulting
from chasquimq.wire.stream_entry import bulk
from support.waiting import eventually

TAIL = b"name=chasqui-results "


class Gate:
    """A handler that returns what it was given once the gate is open."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self.ended_s = 0.0

    def open(self) -> None:
        self._is_open.set()

    async def __call__(self, job):
        await self._is_open.wait()
        self.ended_s = time.monotonic()
        return job.data


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def no_poll(monkeypatch):
    """The poll comes too late to be of help."""
    monkeypatch.setattr(resulting, "POLL_S_MAX", 60.0)


async def tails(raw) -> list[bytes]:
    lines = (await raw("CLIENT", "LIST")).splitlines()
    return [line for line in lines if TAIL in line]


async def listening(raw) -> list[bytes]:
    """Ids of the tails that wait for events now."""
    found = [line for line in await tails(raw) if b"cmd=xread " in line]
    return [line.split(b"id=")[1].split()[0] for line in found]


async def gone(raw) -> bool:
    return await tails(raw) == []


async def started_wait(raw, job) -> asyncio.Task:
    waiting = asyncio.create_task(job.wait_for_result(timeout=20, poll_interval=60))
    await eventually(lambda: listening(raw), what="a tail that listens")
    return waiting


async def test_an_event_wakes_whoever_waits(queue, raw, running_worker, gate, no_poll):
    await running_worker(gate, store_results=True)
    waiting = await started_wait(raw, await queue.add("echo", 7))

    gate.open()

    assert await asyncio.wait_for(waiting, 5) == 7


async def test_a_failed_job_wakes_its_waiter_too(queue, raw, running_worker, gate, no_poll):
    async def fails(job):
        await gate(job)
        raise ValueError("no")

    await running_worker(fails, store_results=True, max_attempts=1)
    waiting = await started_wait(raw, await queue.add("echo", 7))

    gate.open()

    with pytest.raises(Exception, match="no"):
        await asyncio.wait_for(waiting, 5)


async def test_results_are_seen_well_before_the_poll_would_look(queue, running_worker):
    ended_s = {}

    async def handler(job):
        await asyncio.sleep(0.06)
        ended_s[job.id] = time.monotonic()

    await running_worker(handler, store_results=True)
    lags_s = []
    for _ in range(10):
        job = await queue.add("echo", 1)
        await job.wait_for_result(timeout=10, poll_interval=10)
        lags_s.append(time.monotonic() - ended_s[job.id])

    # A poll alone takes what is left of 250 ms; on a busy machine not every event is slow.
    assert min(lags_s) < 0.09


async def test_what_ended_before_anyone_listened_is_seen(queue, running_worker, no_poll):
    await running_worker(echo, store_results=True)
    job = await queue.add("echo", 7)
    await eventually(lambda: queue.get_job_result(job.id))

    assert await asyncio.wait_for(job.wait_for_result(poll_interval=60), 5) == 7


async def echo(job):
    return job.data


async def test_who_comes_later_does_not_wait_for_the_next_poll(
    queue, raw, running_worker, gate, no_poll
):
    await running_worker({"slow": gate, "fast": echo}, store_results=True)
    fast = await queue.add("fast", 1)
    await eventually(lambda: queue.get_job_result(fast.id))
    waiting = await started_wait(raw, await queue.add("slow", 2))

    assert await asyncio.wait_for(fast.wait_for_result(poll_interval=60), 5) == 1
    gate.open()
    assert await asyncio.wait_for(waiting, 5) == 2


async def test_one_tail_serves_all_and_ends_after_the_last(queue, raw, running_worker, gate):
    await running_worker(gate, store_results=True)
    await eventually(lambda: gone(raw), what="the end of every earlier tail")

    jobs = await queue.add_bulk([{"name": "echo", "data": at} for at in range(1, 30)])
    waiting = asyncio.gather(*(job.wait_for_result(timeout=10) for job in jobs))
    await eventually(lambda: listening(raw))
    assert len(await tails(raw)) == 1
    gate.open()

    assert await waiting == list(range(1, 30))

    await eventually(lambda: gone(raw), what="the end of the tail")


async def test_waits_one_after_the_other_share_a_tail(queue, raw, running_worker):
    async def handler(job):
        await asyncio.sleep(0.02)
        return job.data

    await running_worker(handler, store_results=True)
    seen = set()
    for at in range(1, 6):
        job = await queue.add("echo", at)
        assert await job.wait_for_result(timeout=10) == at
        await eventually(lambda: listening(raw))
        seen.update(await listening(raw))

    assert len(seen) == 1


async def test_without_events_the_poll_finds_the_result(queue, running_worker, gate):
    await running_worker(gate, store_results=True, events="off")
    job = await queue.add("echo", 7)
    waiting = asyncio.create_task(job.wait_for_result(timeout=10))

    gate.open()

    assert await waiting == 7


async def test_where_events_may_not_be_read_the_poll_finds_the_result(
    queue, raw, running_worker, gate
):
    await raw("SET", raw.keys.events, "not a stream")
    await running_worker(gate, store_results=True)
    first, second = await queue.add_bulk([{"name": "echo", "data": at} for at in (1, 2)])
    waiting = asyncio.create_task(first.wait_for_result(timeout=10))

    gate.open()

    assert await waiting == 1
    assert await second.wait_for_result(timeout=10) == 2


async def test_a_tail_that_was_cut_off_listens_again(queue, raw, running_worker, gate, no_poll):
    await running_worker(gate, store_results=True)
    waiting = await started_wait(raw, await queue.add("echo", 7))
    (cut,) = await listening(raw)

    async def is_back():
        return set(await listening(raw)) - {cut}

    await raw("CLIENT", "KILL", "ID", cut)
    await eventually(is_back, what="a new tail")
    gate.open()

    assert await asyncio.wait_for(waiting, 5) == 7


async def test_what_ends_while_the_tail_is_cut_off_is_not_missed(
    queue, raw, running_worker, gate, no_poll
):
    await running_worker(gate, store_results=True)
    waiting = await started_wait(raw, await queue.add("echo", 7))
    (cut,) = await listening(raw)

    await raw("CLIENT", "KILL", "ID", cut)
    gate.open()

    assert await asyncio.wait_for(waiting, 5) == 7


async def test_a_stream_busier_than_a_page_hides_no_end(queue, raw, running_worker, gate, no_poll):
    await running_worker(gate, store_results=True)
    waiting = await started_wait(raw, await queue.add("echo", 7))

    noise = b"".join(map(bulk, (b"XADD", raw.keys.events.encode(), b"*", b"e", b"active")))
    burst = asyncio.ensure_future(raw.connection.send((b"*5\r\n" + noise) * 5_000, 5_000))
    gate.open()
    await burst

    assert await asyncio.wait_for(waiting, 10) == 7


async def test_a_closed_queue_refuses_to_wait_at_once(url, queue_name, running_worker):
    await running_worker(echo, store_results=True)
    async with Queue(queue_name, redis_url=url) as queue:
        job = await queue.add("echo", 7)
        await job.wait_for_result(timeout=10)

    with pytest.raises(StoreError, match="closed"):
        await asyncio.wait_for(job.wait_for_result(timeout=30), 5)


async def test_closing_a_queue_ends_every_wait_and_its_tail(url, queue_name, raw):
    queue = Queue(queue_name, redis_url=url)
    jobs = await queue.add_bulk([{"name": "never", "data": at} for at in range(3)])
    waits = [asyncio.create_task(job.wait_for_result(timeout=30)) for job in jobs]
    await eventually(lambda: listening(raw))

    await queue.close()

    answers = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 5)
    assert [type(answer) for answer in answers] == [StoreError] * 3
    await eventually(lambda: gone(raw), what="the server to see the tail gone")
