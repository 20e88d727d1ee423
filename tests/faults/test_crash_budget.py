"""Workers killed while their jobs fail: crashes and failures are paid from one budget."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

from chasquimq import BackoffSpec
from support.failing_worker import FailingFleet
from support.journal import START, read_journals

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
JOBS, KILLS = (4_000, 60) if IS_BIG else (250, 6)
WORKERS = 3
ATTEMPTS_MAX = 3
LEASE_MS = 500
SEED = int(os.environ.get("CHASQUI_TEST_SEED", "20261"))
OPTIONS = {"concurrency": 2, "claim_min_idle_ms": LEASE_MS, "max_attempts": ATTEMPTS_MAX}


@pytest.fixture
def fleet(url, queue_name, tmp_path):
    fleet = FailingFleet(url, queue_name, tmp_path)
    yield fleet
    fleet.close()


async def test_a_job_never_starts_more_often_than_its_budget_however_its_workers_die(
    fleet, trial, raw, tmp_path, kind
):
    trial.seed, dice = SEED, random.Random(SEED)
    for process in [fleet.launch("always_fails", **OPTIONS) for _ in range(WORKERS)]:
        await process.until_ready()

    jobs = await trial.add_bulk(
        [{"name": "fails", "data": 0, "backoff": BackoffSpec.fixed(50)} for _ in range(JOBS)]
    )
    for _ in range(KILLS):
        victim = dice.choice([one for one in fleet.processes if one.is_alive])
        await victim.until_ready()
        await asyncio.sleep(dice.uniform(0.02, 0.25))
        fleet.kill(victim)
        fleet.launch("always_fails", **OPTIONS)
    await trial.drain()
    await fleet.stop_all()

    verdict = await trial.verdict(more_faults=fleet.faults, attempts_max=ATTEMPTS_MAX)
    runs = [line for line in read_journals(tmp_path) if line.event == START]
    starts = Counter(line.job_id for line in runs)
    reasons = Counter(fields[b"reason"].decode() for fields in await raw.dlq())
    print(
        f"{kind.label}: {verdict.line}, at most {max(starts.values())} of one job, "
        f"dead {dict(reasons)}"
    )
    verdict.demand()
    assert max(starts.values()) <= ATTEMPTS_MAX
    assert max(Counter((line.job_id, line.attempt) for line in runs).values()) == 1
    assert verdict.figures["dead"] == len(jobs)
    assert set(reasons) <= {"retries_exhausted", "crash_loop"}
