"""Workers killed again and again: nothing is lost, and little is done twice."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from support.journal import START, read_journals
from support.waiting import eventually, patience

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
LEASE_MS = 1000
KILLS, JOBS = (100, 40_000) if IS_BIG else (20, 4_000)
SEED = int(os.environ.get("CHASQUI_TEST_SEED", "7"))
OPTIONS = {"concurrency": 2, "claim_min_idle_ms": LEASE_MS}
# The original did 3.5 for each kill.
DOUBLES_PER_KILL_MAX = 1.0


@pytest.mark.timeout(900 if IS_BIG else 240)
async def test_kills_lose_nothing_and_double_next_to_nothing(trial, fleet, kind):
    trial.seed, dice = SEED, random.Random(SEED)
    workers = [fleet.launch("brief", **OPTIONS) for _ in range(3)]
    for worker in workers:
        await worker.until_ready()
    await trial.add_bulk([{"name": "n", "data": i} for i in range(JOBS)])

    for _ in range(KILLS):
        await asyncio.sleep(dice.uniform(0.3, 0.5))
        at = dice.randrange(len(workers))
        await workers[at].until_ready()
        fleet.kill(workers[at])
        workers[at] = fleet.launch("brief", **OPTIONS)
    await trial.drain(within_s=800 if IS_BIG else 60)
    await fleet.stop_all()

    verdict = await trial.verdict(more_faults=fleet.faults)
    print(f"{kind.label}: {verdict.line}")
    verdict.demand()
    figures = verdict.figures
    assert figures["jobs"] == JOBS
    assert figures["extra_starts"] <= KILLS * OPTIONS["concurrency"]
    assert figures["extra_completions"] <= KILLS * DOUBLES_PER_KILL_MAX
    assert figures["restart_s_max"] <= LEASE_MS / 1000 + 2 * patience()
    assert figures["dead"] == 0


async def test_a_worker_that_was_frozen_starts_nothing_that_others_took_over(
    trial, fleet, tmp_path
):
    frozen = await fleet.start("brief", concurrency=1, read_count=50, claim_min_idle_ms=LEASE_MS)
    await trial.add_bulk([{"name": "n", "data": i} for i in range(100)])
    await eventually(lambda: len(starts_of(frozen, tmp_path)) > 2)

    fleet.freeze(frozen)
    await fleet.start("brief", **OPTIONS)
    await trial.drain(within_s=15)
    known = len(starts_of(frozen, tmp_path))
    fleet.thaw(frozen)
    await fleet.stop(frozen)

    verdict = await trial.verdict(more_faults=fleet.faults)
    frozen_for = next(one for one in fleet.faults if one.kind == "stop")
    verdict.demand()
    assert frozen_for.to_s - frozen_for.from_s > LEASE_MS / 1000
    # Where the machine lets nobody run, an ack that had not left yet costs another start.
    assert verdict.figures["extra_starts"] <= patience()
    assert len(starts_of(frozen, tmp_path)) == known


def starts_of(process, folder):
    return [one for one in read_journals(folder) if one.pid == process.pid and one.event == START]
