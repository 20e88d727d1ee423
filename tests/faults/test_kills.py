"""Workers killed again and again: nothing is lost, and little is done twice."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from chasquimq.engine.delivery_count import PROVED_S
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


async def test_idle_workers_restart_what_a_killed_one_ran(queue, fleet, tmp_path, kind):
    """They sleep in long reads, and wake when the lease of the killed one has run out."""
    lease_ms = 3_000
    holder = await fleet.start("wait", concurrency=4, claim_min_idle_ms=lease_ms)
    await queue.add_bulk([{"name": "n", "data": 60} for _ in range(4)])
    await eventually(lambda: len(starts_of(holder, tmp_path)) == 4)
    for _ in range(2):
        await fleet.start("wait", claim_min_idle_ms=lease_ms)
    await asyncio.sleep(2)

    killed_s = holder.kill()
    starts = await eventually(lambda: restarts(holder, tmp_path, 4), within_s=20)

    restarted_s = sorted(one.t_s - killed_s for one in starts)
    print(
        f"{kind.label}: four jobs ran again {restarted_s[0]:.2f} to {restarted_s[-1]:.2f} s after"
    )
    # Each of the two tries one redelivered job at a time, until a run of it has lasted.
    assert restarted_s[1] <= lease_ms / 1000 + 2 * patience()
    assert restarted_s[-1] <= lease_ms / 1000 + PROVED_S + 2 * patience()


def restarts(dead, folder, count):
    """Starts in other processes, when there are as many."""
    lines = read_journals(folder)
    starts = [one for one in lines if one.event == START and one.pid != dead.pid]
    return starts if len(starts) == count else None


def starts_of(process, folder):
    return [one for one in read_journals(folder) if one.pid == process.pid and one.event == START]
