"""A healthy handler of any length is started once, whoever waits beside it."""

from __future__ import annotations

from collections import Counter

import pytest

from support.waiting import eventually

LEASE_MS = 1_000


@pytest.mark.parametrize("handler", ["sleeping", "blocking", "spinning", "spinning_in_a_thread"])
async def test_a_handler_longer_than_its_lease_starts_once(queue, workers, handler):
    options = {"claim_min_idle_ms": LEASE_MS, "events_enabled": False}
    workers.start(handler, 3.5 * LEASE_MS / 1000, concurrency=2, **options)
    await queue.add_bulk([{"name": "long", "data": at} for at in range(2)])
    await eventually(lambda: workers.lines("start"))
    # It comes when the jobs are taken, so that only a lost lease could bring it one.
    workers.start("sleeping", 0, concurrency=2, **options)

    await eventually(lambda: len(workers.lines("end")) >= 2, within_s=20)

    starts = Counter(line.job_id for line in workers.lines("start"))
    assert set(starts.values()) == {1}
    assert len(starts) == 2


async def test_prefetched_jobs_behind_a_long_handler_start_once_too(queue, workers):
    options = {"claim_min_idle_ms": LEASE_MS, "concurrency": 1, "events_enabled": False}
    jobs = await queue.add_bulk([{"name": "long", "data": at} for at in range(24)])
    workers.start("sleeping", 0.35, read_count=64, **options)
    await eventually(lambda: workers.lines("start"))
    workers.start("sleeping", 0.35, **options)

    async def is_done():
        return (await queue.counts()).backlog == 0

    await eventually(is_done, within_s=30)
    starts = Counter(line.job_id for line in workers.lines("start"))
    assert starts == Counter(job.id for job in jobs)
    assert {line.attempt for line in workers.lines("start")} == {0}
