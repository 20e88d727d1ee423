"""Handlers that take far longer than their lease, with hardly any budget: once is once."""

from __future__ import annotations

import pytest

from support.journal import check, read_journals
from support.processes import WorkerFleet
from support.waiting import eventually

JOBS = 5
HANDLER_S = 4.0
LEASE_MS = 500


@pytest.fixture
def fleet(url, queue_name, tmp_path):
    fleet = WorkerFleet(url, queue_name, tmp_path)
    yield fleet
    fleet.close()


async def test_a_handler_of_eight_leases_completes_once_and_never_dies(
    fleet, queue, raw, tmp_path, kind
):
    options = {"concurrency": JOBS, "claim_min_idle_ms": LEASE_MS, "max_attempts": 2}
    jobs = await queue.add_bulk([{"name": "slow", "data": HANDLER_S}] * JOBS)
    for process in [fleet.launch("wait", **options) for _ in range(2)]:
        await process.until_ready()

    await eventually(lambda: is_done(queue), within_s=HANDLER_S + 10, what="an empty queue")

    report = check(read_journals(tmp_path), added=[job.id for job in jobs], attempts_max=2)
    dead = await raw.dlq()
    print(f"{kind.label}: {report}, dead {len(dead)}")
    assert (report.starts, report.completions) == (JOBS, JOBS)
    assert (report.lost, report.overlaps, dead) == ([], [], [])


async def is_done(queue):
    return (await queue.counts()).backlog == 0
