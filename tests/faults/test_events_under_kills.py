"""Events while workers are killed: some are missing, and the missing are counted; none is untrue."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import chain

import pytest

from chasquimq import QueueEvents
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.outcome import decode_outcome
from chasquimq.wire.stream_entry import split_member
from support.journal import END_OK, read_journals
from support.waiting import eventually

KILLS, JOBS = 10, 2_000
CONCURRENCY = 4
OPTIONS = {"concurrency": CONCURRENCY, "claim_min_idle_ms": 1_000}
FATES = ["completes"] * 8 + ["fails once", "gives up"]
BACKOFF = {"kind": "fixed", "delay_ms": 20, "jitter_ms": 0}


class Follower:
    """Reads every event as it comes, and looks at once whether what it says is so."""

    def __init__(self, url: str, queue_name: str, raw) -> None:
        self.events = QueueEvents(queue_name, redis_url=url, last_event_id="0", block_ms=100)
        self.seen: list = []
        self.untrue: list[str] = []
        self._raw = raw
        self._task = asyncio.create_task(self._follow())

    def told(self, name: str) -> Counter[str]:
        return Counter(event.job_id for event in self.seen if event.name == name)

    async def until_read(self, count: int) -> None:
        await eventually(lambda: len(self.seen) >= count, within_s=20, what=f"{count} events")

    async def close(self) -> None:
        await self.events.close()
        await self._task

    async def _follow(self) -> None:
        async for event in self.events:
            self.seen.append(event)
            if event.name in ("completed", "dlq") and not await self._is_so(event):
                self.untrue.append(f"{event.name} {event.job_id}")

    async def _is_so(self, event) -> bool:
        stored = await self._raw("GET", self._raw.keys.outcome(event.job_id))
        ends = {"completed": "completed", "dlq": "dead"}
        return stored is not None and decode_outcome(stored).status == ends[event.name]


@pytest.fixture
async def follower(url, queue_name, raw):
    follower = Follower(url, queue_name, raw)
    yield follower
    await follower.close()


@pytest.mark.timeout(240)
async def test_no_event_of_a_killed_fleet_is_untrue_and_those_that_are_missing_are_counted(
    trial, raw, fleet, follower, tmp_path, kind
):
    trial.seed, dice = 11, random.Random(11)
    options = OPTIONS | {"store_results": True}
    workers = [fleet.launch("fated", **options) for _ in range(3)]
    for worker in workers:
        await worker.until_ready()
    added = {job.id for job in await trial.add_bulk(jobs(dice))}

    for _ in range(KILLS):
        await asyncio.sleep(dice.uniform(0.15, 0.35))
        at = dice.randrange(len(workers))
        fleet.kill(workers[at])
        workers[at] = fleet.launch("fated", **options)
    await trial.drain(within_s=60)
    await fleet.stop_all()
    verdict = await trial.verdict(more_faults=fleet.faults)
    written = await entries_added(raw)
    await follower.until_read(written)

    buried = {decode_envelope(letter[b"d"]).id for letter in await raw.dlq()}
    completed, dead = follower.told("completed"), follower.told("dlq")
    lost = len(added) - len(completed) - len(dead)
    ended_ok = {line.job_id for line in read_journals(tmp_path) if line.event == END_OK}
    print(f"{kind.label}: {written} events, {lost} ends not told; {verdict.line}")
    verdict.demand()
    assert follower.untrue == []
    assert len(follower.seen) == written
    assert set(completed.values()) | set(dead.values()) == {1}
    assert completed.keys() <= ended_ok
    assert dead.keys() <= buried
    assert completed.keys().isdisjoint(buried)
    assert completed.keys() | dead.keys() <= added
    assert 0 <= lost <= KILLS * CONCURRENCY


@pytest.mark.timeout(240)
async def test_what_a_dead_fleet_left_behind_was_never_told_completed(
    trial, raw, fleet, follower, tmp_path
):
    trial.seed, dice = 12, random.Random(12)
    for _ in range(3):
        await fleet.start("fated", **OPTIONS)
    added = {job.id for job in await trial.add_bulk(jobs(dice))}

    await eventually(lambda: len(follower.told("completed")) > JOBS / 4, within_s=30)
    for worker in fleet.processes:
        fleet.kill(worker)
    await follower.until_read(await entries_added(raw))

    left, told = await left_behind(raw), set(follower.told("completed"))
    ended_ok = {line.job_id for line in read_journals(tmp_path) if line.event == END_OK}
    assert left
    assert told <= added
    assert told.isdisjoint(left)
    assert told <= ended_ok

    await fleet.start("fated", **OPTIONS | {"concurrency": 50})
    await trial.drain(within_s=60)
    await fleet.stop_all()
    (await trial.verdict(more_faults=fleet.faults)).demand()
    await follower.until_read(await entries_added(raw))
    assert set(follower.told("completed").values()) == {1}
    assert left <= follower.told("completed").keys() | follower.told("dlq").keys()


def jobs(dice: random.Random) -> list[dict]:
    return [{"name": "fated", "data": dice.choice(FATES), "backoff": BACKOFF} for _ in range(JOBS)]


async def entries_added(raw) -> int:
    """How many events there ever were, by the server's own count."""
    facts = await raw("XINFO", "STREAM", raw.keys.events)
    return dict(zip(facts[::2], facts[1::2], strict=True))[b"entries-added"]


async def left_behind(raw) -> set[str]:
    """Jobs that are ready, held by a dead worker, or waiting for their next run."""
    waiting = [fields[b"d"] for _, fields in await raw.entries(raw.keys.stream)]
    delayed = [split_member(one)[1] for one in await raw("ZRANGE", raw.keys.delayed, 0, -1)]
    return {decode_envelope(envelope).id for envelope in chain(waiting, delayed)}
