"""Adders wait while too many of their bytes are unconfirmed, so that a frozen server costs no memory."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from chasquimq import Queue, RepeatPattern
from chasquimq.errors import ConnectionLost, LimitExceeded
from support.faultproxy import FaultProxy

MIB = 1024 * 1024
DATA = b"x" * 1_000_000
BOUND = 4 * MIB
COUNT = 40
# A server of this test alone, to be frozen.
pytestmark = [pytest.mark.own_server, pytest.mark.takes_turns]


@pytest.fixture
async def bounded(server, queue_name):
    """A queue with a small bound, which has connected."""
    async with Queue(
        queue_name, redis_url=server.url, unconfirmed_max_bytes=BOUND,
        command_timeout_ms=60_000, add_timeout_ms=60_000,
    ) as queue:  # fmt: skip
        await queue.add("warm", 0)
        yield queue


@contextmanager
def frozen(server):
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def some_rounds() -> None:
    for _ in range(20):
        await asyncio.sleep(0.01)


def all_at_once(calls) -> list[asyncio.Task]:
    return [asyncio.ensure_future(call) for call in calls]


ADDS = {
    "add": lambda queue, _: queue.add("n", DATA),
    "add_bulk": lambda queue, _: queue.add_bulk([{"name": "n", "data": DATA}]),
    "add_unique": lambda queue, at: queue.add_unique("n", DATA, job_id=f"id-{at}"),
    "delayed": lambda queue, _: queue.add("n", DATA, delay_ms=60_000),
}


async def test_adds_to_a_frozen_server_take_no_more_memory_than_the_default_bound_explains(
    server, raw, queue_name
):
    async with Queue(queue_name, redis_url=server.url, add_timeout_ms=60_000) as queue:
        await queue.add("warm", 0)
        before = resident_bytes()
        with frozen(server):
            adding = all_at_once(queue.add("n", DATA) for _ in range(400))
            await some_rounds()
            grown = resident_bytes() - before
            held = queue.unconfirmed_bytes

        jobs = await asyncio.gather(*adding)

    assert 63 * MIB <= held <= 65 * MIB
    # The job, its envelope, and a copy in the buffer of the socket; unbounded it was 1,400 MB.
    assert grown < 4.5 * 64 * MIB
    assert len({job.id for job in jobs}) == 400
    assert await raw("XLEN", raw.keys.stream) == 401


@pytest.mark.parametrize("way", ADDS)
async def test_every_way_to_add_waits_at_the_bound_and_adds_each_job_once_after_it(
    bounded, server, raw, way
):
    with frozen(server):
        adding = all_at_once(ADDS[way](bounded, at) for at in range(COUNT))
        await some_rounds()
        held = bounded.unconfirmed_bytes

    await asyncio.gather(*adding)

    assert BOUND <= held <= BOUND + len(DATA) + 100
    assert bounded.unconfirmed_bytes == 0
    ready, later = await raw("XLEN", raw.keys.stream), await raw("ZCARD", raw.keys.delayed)
    assert ready + later == COUNT + 1


async def test_plans_wait_at_the_bound_too(bounded, server):
    with frozen(server):
        planning = all_at_once(
            bounded.upsert_repeatable_job(
                f"n-{at}", DATA[:900_000], repeat=RepeatPattern.every(60_000)
            )
            for at in range(COUNT)
        )
        await some_rounds()
        held = bounded.unconfirmed_bytes

    await asyncio.gather(*planning)

    assert BOUND <= held <= BOUND + len(DATA)
    assert len(await bounded.get_repeatable_jobs()) == COUNT
    assert bounded.unconfirmed_bytes == 0


async def test_a_job_larger_than_the_bound_goes_when_nothing_else_is_unconfirmed(
    server, raw, queue_name
):
    async with Queue(queue_name, redis_url=server.url, unconfirmed_max_bytes=1_000) as queue:
        await asyncio.gather(*[queue.add("n", DATA) for _ in range(5)])
        await queue.add_bulk([{"name": "n", "data": DATA}] * 5)

    assert await raw("XLEN", raw.keys.stream) == 10


async def test_a_bulk_gives_room_back_part_by_part(bounded, server, raw):
    await bounded.add_bulk([{"name": "n", "data": DATA}] * 20)

    assert bounded.unconfirmed_bytes == 0
    assert await raw("XLEN", raw.keys.stream) == 21


async def test_first_come_first_served(bounded, server):
    done: list[int] = []

    async def add(at: int) -> None:
        await bounded.add("n", DATA)
        done.append(at)

    with frozen(server):
        adding = all_at_once(add(at) for at in range(COUNT))
        await some_rounds()

    await asyncio.gather(*adding)
    assert done == sorted(done)


async def test_an_adder_that_gives_up_waiting_adds_nothing_and_holds_up_nobody(
    bounded, server, raw
):
    with frozen(server):
        adding = all_at_once(bounded.add("n", DATA) for _ in range(COUNT))
        await some_rounds()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bounded.add("late", DATA), 0.1)
        for task in adding[10:30]:
            task.cancel()

    ends = await asyncio.gather(*adding, return_exceptions=True)

    assert sum(isinstance(end, asyncio.CancelledError) for end in ends) == 20
    assert await raw("XLEN", raw.keys.stream) == 1 + COUNT - 20
    assert bounded.unconfirmed_bytes == 0


async def test_adders_that_wait_when_the_connection_breaks_all_get_in(server, raw, queue_name):
    async with (
        FaultProxy(server.url) as proxy,
        Queue(queue_name, redis_url=proxy.url, unconfirmed_max_bytes=BOUND) as queue,
    ):
        await queue.add("warm", 0)
        proxy.freeze()
        adding = all_at_once(queue.add("n", DATA) for _ in range(COUNT))
        await some_rounds()
        proxy.cut()
        proxy.thaw()

        await asyncio.wait_for(asyncio.gather(*adding), 60)

        assert queue.unconfirmed_bytes == 0
    assert await raw("XLEN", raw.keys.stream) == COUNT + 1


async def test_adders_that_wait_when_the_queue_is_closed_hear_that_nothing_was_added(
    bounded, server
):
    with frozen(server):
        adding = all_at_once(bounded.add("n", DATA) for _ in range(COUNT))
        await some_rounds()
        await bounded.close()
        ends = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 10)

    assert {type(end) for end in ends} == {ConnectionLost}
    assert [end.outcome for end in ends][-1] == "not_done"


async def test_an_adder_waits_no_longer_than_its_timeout_when_nothing_is_confirmed(
    server, queue_name
):
    async with Queue(
        queue_name, redis_url=server.url, unconfirmed_max_bytes=BOUND, add_timeout_ms=1_000
    ) as queue:
        await queue.add("warm", 0)
        with frozen(server):
            adding = all_at_once(queue.add("n", DATA) for _ in range(COUNT))
            ends = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 20)
    waited = [end for end in ends if "unconfirmed" in str(end)]
    assert {type(end) for end in ends} == {ConnectionLost}
    assert len(waited) > COUNT / 2
    assert {end.outcome for end in waited} == {"not_done"}


def test_a_bound_must_be_a_number_of_bytes(queue_name):
    with pytest.raises(LimitExceeded, match="unconfirmed_max_bytes"):
        Queue(queue_name, unconfirmed_max_bytes=0)
