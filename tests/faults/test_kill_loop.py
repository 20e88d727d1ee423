"""Workers that are killed at any moment lose no job and double few."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from support.waiting import eventually
from support.worker_processes import kill

LEASE_MS = 1_000
KILLS = 20
JOBS = 4_000


async def test_twenty_kills_among_three_workers_lose_nothing(queue, workers, raw, capsys, kind):
    dice = random.Random(20)
    options = {"claim_min_idle_ms": LEASE_MS, "concurrency": 10}

    def start():
        return workers.start("sleeping", 0.01, **options)

    fleet = [start() for _ in range(3)]
    jobs = []
    for _ in range(JOBS // 500):
        jobs += await queue.add_bulk([{"name": "a", "data": 0} for _ in range(500)])
    await eventually(lambda: workers.lines("start"), within_s=20)

    killed_at_s = {}
    for _ in range(KILLS):
        await asyncio.sleep(dice.uniform(0.1, 0.35))
        victim = dice.randrange(3)
        killed_at_s[fleet[victim].pid] = kill(fleet[victim])
        fleet[victim] = start()
        if (await queue.counts()).backlog < 500:
            jobs += await queue.add_bulk([{"name": "a", "data": 0} for _ in range(500)])

    async def is_done():
        return (await queue.counts()).backlog == 0

    await eventually(is_done, within_s=60)

    ends = Counter(line.job_id for line in workers.lines("end"))
    starts = workers.lines("start")
    extra_ends = sum(ends.values()) - len(ends)
    waits_s = _restart_waits(starts, workers.lines("end"), killed_at_s)
    with capsys.disabled():
        print(
            f"\n{kind.label}: {len(jobs)} jobs, {KILLS} kills: lost {len(jobs) - len(ends)}, "
            f"extra completions {extra_ends} ({extra_ends / KILLS:.2f} a kill), "
            f"extra starts {len(starts) - len(jobs)}, restart within {max(waits_s):.2f} s"
        )
    assert set(ends) == {job.id for job in jobs}
    assert extra_ends / KILLS <= 1.0
    assert max(waits_s) <= LEASE_MS / 1000 + 2
    assert await raw.dlq() == []


def _restart_waits(starts, ends, killed_at_s) -> list[float]:
    """How long the jobs that were running in a killed process waited for their next start."""
    ended = {(line.pid, line.job_id) for line in ends}
    waits = []
    for line in starts:
        if line.pid not in killed_at_s or (line.pid, line.job_id) in ended:
            continue
        later = [s.at_s for s in starts if s.job_id == line.job_id and s.at_s > line.at_s]
        waits.append(later[0] - killed_at_s[line.pid])
    return waits
