"""Connections cut again and again under load: every add returns or raises, and no job is there twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from chasquimq import Queue
from chasquimq.errors import ConnectionLost
from chasquimq.wire.envelope import decode_envelope
from support.waiting import eventually

BULKS = 100
BULK_SIZE = 1_000
IN_FLIGHT = 8
FAULTS = 12
# On a busy machine a dozen cuts outlast the usual five seconds of an add.
LONG = {"add_timeout_ms": 30_000}


class Ledger:
    """What callers were told: ids that were added, and ids that may have been."""

    def __init__(self) -> None:
        self.returned: list[str] = []
        self.told: list[str] = []
        self.outcomes: set[str] = set()

    async def add(self, adding) -> None:
        try:
            added = await asyncio.wait_for(adding, 40)
        except ConnectionLost as error:
            self.outcomes.add(error.outcome)
            self.told += error.job_ids
            return
        self.returned += [job.id for job in (added if isinstance(added, list) else [added])]

    async def check(self, raw, expected: int) -> None:
        """Every returned job is in the stream once, every other one at most once."""
        found = Counter(
            [decode_envelope(row[b"d"]).id for _, row in await raw.entries(raw.keys.stream)]
        )
        assert len(self.returned) + len(self.told) == expected
        assert self.outcomes <= {"unknown"}
        assert not [job_id for job_id, count in found.items() if count > 1]
        assert not [job_id for job_id in self.returned if job_id not in found]
        assert found.keys() <= {*self.returned, *self.told}


@pytest.fixture(autouse=True)
def quick_dials(monkeypatch):
    """A dozen cuts in a few seconds must not cost a dozen long pauses."""
    monkeypatch.setattr("chasquimq.store.net.connect._YOUNG_S", 0.0)


@pytest.fixture
async def open_queue(proxy, queue_name):
    queues = []

    async def open_one(**options) -> Queue:
        queue = Queue(queue_name, redis_url=proxy.url, **options)
        queues.append(queue)
        await queue.counts()
        return queue

    yield open_one
    for queue in queues:
        await queue.close()


async def cut(proxy, _dice) -> None:
    proxy.cut()


async def cut_inside_a_write(proxy, dice) -> None:
    accepted = proxy.accept_count
    proxy.cut_after(dice.randrange(1, 8_000))
    await eventually(lambda: proxy.accept_count > accepted, what="a new dial after the cut")


async def lose_replies(proxy, _dice) -> None:
    dropped = proxy.dropped_bytes
    proxy.drop_replies()
    await eventually(lambda: proxy.dropped_bytes > dropped, what="a lost reply")
    proxy.cut()
    proxy.thaw()


async def harass(proxy, fault, seed: int, work: asyncio.Future, faults: int = FAULTS) -> int:
    """Let faults happen at seeded moments of the work; answers how many did."""
    dice = random.Random(seed)
    for count in range(faults):
        moment = proxy.write_count + dice.randrange(1, 12)
        await eventually(lambda at=moment: work.done() or proxy.write_count >= at, within_s=40)
        if work.done():
            return count
        async with asyncio.timeout(40):
            fault_task = asyncio.ensure_future(fault(proxy, dice))
            await asyncio.wait([fault_task, work], return_when=asyncio.FIRST_COMPLETED)
            fault_task.cancel()
        proxy.thaw()
    return faults


async def add_bulks(queue: Queue, ledger: Ledger) -> None:
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def add_one(number: int) -> None:
        async with gate:
            jobs = [{"name": "n", "data": number}] * BULK_SIZE
            await ledger.add(queue.add_bulk(jobs))

    await asyncio.gather(*map(add_one, range(BULKS)))


@pytest.mark.parametrize("fault", [cut, cut_inside_a_write, lose_replies])
async def test_bulks_through_cuts_all_return_and_no_job_is_there_twice(
    open_queue, proxy, raw, fault
):
    queue, ledger = await open_queue(**LONG), Ledger()
    work = asyncio.ensure_future(add_bulks(queue, ledger))

    happened = await harass(proxy, fault, seed=20, work=work)

    await work
    assert happened >= 3
    assert ledger.told == []
    await ledger.check(raw, BULKS * BULK_SIZE)


@pytest.mark.parametrize("fault", [cut, lose_replies])
async def test_without_resend_bulks_through_cuts_are_told_and_no_job_is_there_twice(
    open_queue, proxy, raw, fault
):
    queue, ledger = await open_queue(resend=False, **LONG), Ledger()
    work = asyncio.ensure_future(add_bulks(queue, ledger))

    await harass(proxy, fault, seed=21, work=work)

    await work
    assert ledger.told
    await ledger.check(raw, BULKS * BULK_SIZE)


@pytest.mark.parametrize("fault", [cut, cut_inside_a_write, lose_replies])
async def test_single_adds_through_cuts_all_return_and_no_job_is_there_twice(
    open_queue, proxy, raw, fault
):
    queue, ledger = await open_queue(**LONG), Ledger()

    async def add_some() -> None:
        for number in range(300):
            await ledger.add(queue.add("n", number))

    work = asyncio.gather(*(add_some() for _ in range(20)))

    happened = await harass(proxy, fault, seed=22, work=work)

    await work
    assert happened >= 3
    assert ledger.told == []
    await ledger.check(raw, 6_000)


async def test_adds_with_the_usual_limit_all_return_through_a_few_cuts(open_queue, proxy, raw):
    queue, ledger = await open_queue(), Ledger()

    async def add_some() -> None:
        for number in range(100):
            await ledger.add(queue.add("n", number))

    work = asyncio.gather(*(add_some() for _ in range(20)))

    happened = await harass(proxy, cut, seed=24, work=work, faults=3)

    await work
    assert happened == 3
    assert ledger.told == []
    await ledger.check(raw, 2_000)


async def test_jobs_with_ids_of_their_own_through_lost_replies_are_there_once(
    open_queue, proxy, raw
):
    queue, ledger = await open_queue(**LONG), Ledger()

    async def add_some(group: int) -> None:
        for number in range(50):
            await ledger.add(queue.add("n", number, job_id=f"job-{group}-{number}"))

    work = asyncio.gather(*map(add_some, range(10)))

    await harass(proxy, lose_replies, seed=23, work=work)

    await work
    await ledger.check(raw, 500)
    assert sorted(ledger.returned) == sorted(
        f"job-{group}-{number}" for group in range(10) for number in range(50)
    )
