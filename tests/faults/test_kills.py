"""Workers killed again and again: nothing is lost, and little is done twice."""

from __future__ import annotations

import asyncio
import random
import signal
import time

import pytest

from support.journal import check, read_journals
from support.waiting import eventually

LEASE_MS = 1000
KILLS, JOBS = 20, 4000
OPTIONS = {"concurrency": 2, "claim_min_idle_ms": LEASE_MS}


@pytest.mark.timeout(120)
async def test_twenty_kills_lose_nothing_and_double_next_to_nothing(
    queue, raw, fleet, tmp_path, kind
):
    dice = random.Random(7)
    workers = [fleet.launch("brief", **OPTIONS) for _ in range(3)]
    for worker in workers:
        await worker.until_ready()
    jobs = await queue.add_bulk([{"name": "n", "data": i} for i in range(JOBS)])

    for _ in range(KILLS):
        await asyncio.sleep(dice.uniform(0.3, 0.5))
        at = dice.randrange(len(workers))
        fleet.kill(workers[at])
        workers[at] = fleet.launch("brief", **OPTIONS)
    await eventually(lambda: is_empty(queue), within_s=60, what="the drain")

    report = check(read_journals(tmp_path), added=[job.id for job in jobs], killed=fleet.killed)
    report.write(tmp_path / "report.json")
    print(f"{kind.label}: {KILLS} kills, {JOBS} jobs: {report}")
    assert report.lost == []
    assert report.overlaps == []
    assert len(report.dup_starts) <= KILLS * OPTIONS["concurrency"]
    assert len(report.dup_completions) <= KILLS * 1.0
    assert report.restart_s_max <= LEASE_MS / 1000 + 2
    assert await raw.dlq() == []


async def test_a_worker_that_was_frozen_starts_nothing_that_others_took_over(
    queue, fleet, tmp_path
):
    frozen = await fleet.start("brief", concurrency=1, read_count=50, claim_min_idle_ms=LEASE_MS)
    jobs = await queue.add_bulk([{"name": "n", "data": i} for i in range(100)])
    await eventually(lambda: len(read_journals(tmp_path)) > 4)

    frozen.signal(signal.SIGSTOP)
    frozen_s = time.monotonic()
    await fleet.start("brief", **OPTIONS)
    await eventually(lambda: is_empty(queue), within_s=15)
    frozen.signal(signal.SIGCONT)
    thawed_s = time.monotonic()
    await asyncio.sleep(0.5)

    lines = read_journals(tmp_path)
    report = check(lines, added=[job.id for job in jobs])
    late = [line for line in lines if line.pid == frozen.pid and line.t_s > thawed_s]
    assert thawed_s - frozen_s > LEASE_MS / 1000
    assert report.lost == []
    assert len(report.dup_starts) <= 1
    assert [line.event for line in late if line.event == "start"] == []


async def is_empty(queue):
    return (await queue.counts()).backlog == 0
