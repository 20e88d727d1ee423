"""What administrators do to a busy server: scripts flushed, clients killed, a server that naps."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
SEED = int(os.environ.get("CHASQUI_TEST_SEED", "14"))
ACTS = 300 if IS_BIG else 20
NAP_S = 3.0
OPTIONS = {"concurrency": 4, "claim_min_idle_ms": 1_000}
FATES = ["completes"] * 8 + ["fails once", "gives up"]
BACKOFF = {"kind": "fixed", "delay_ms": 30, "jitter_ms": 0}
# A server that may be told to sleep.
pytestmark = pytest.mark.own_server(args=["--enable-debug-command", "yes"])


async def flush_scripts(raw, trial):
    await raw("SCRIPT", "FLUSH")


async def forget_statistics(raw, trial):
    await raw("CONFIG", "RESETSTAT")


async def kill_clients(raw, trial):
    with trial.fault("cut"):
        await raw("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0.3)


async def nap(raw, trial):
    # As long as three leases: nobody can renew anything, and nobody else can take anything.
    with trial.fault("cut"):
        await raw("DEBUG", "SLEEP", NAP_S)


@pytest.mark.timeout(900 if IS_BIG else 180)
async def test_administration_costs_no_job(raw, trial, fleet, kind):
    trial.seed, dice = SEED, random.Random(SEED)
    for process in [fleet.launch("fated", **OPTIONS) for _ in range(2)]:
        await process.until_ready()
    adding = asyncio.create_task(add_all_the_time(trial, dice))

    acts = dice.choices([flush_scripts, forget_statistics, kill_clients], [4, 1, 2], k=ACTS)
    for act in [*acts[: ACTS // 2], nap, *acts[ACTS // 2 :]]:
        await act(raw, trial)
        await asyncio.sleep(dice.uniform(0.0, 0.1))
    adding.cancel()
    await trial.drain(within_s=40)
    await fleet.stop_all()

    verdict = await trial.verdict(more_faults=fleet.faults)
    print(f"{kind.label}: {ACTS} acts and a nap; {verdict.line}")
    verdict.demand()
    assert verdict.figures["jobs"] > ACTS


async def add_all_the_time(trial, dice):
    while True:
        jobs = [{"name": "n", "data": dice.choice(FATES), "backoff": BACKOFF} for _ in range(5)]
        await asyncio.shield(asyncio.ensure_future(trial.add_bulk(jobs)))
        await asyncio.sleep(0.05)
