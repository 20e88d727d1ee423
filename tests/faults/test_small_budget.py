"""Handlers that take far longer than their lease, with hardly any budget: once is once."""

from __future__ import annotations

import asyncio

import pytest

from support.waiting import eventually

JOBS = 5
HANDLER_S = 4.0
LEASE_MS = 500


async def test_a_handler_of_eight_leases_completes_once_and_never_dies(fleet, trial, kind):
    options = {"concurrency": JOBS, "claim_min_idle_ms": LEASE_MS, "max_attempts": 2}
    await trial.add_bulk([{"name": "slow", "data": HANDLER_S}] * JOBS)
    for process in [fleet.launch("wait", **options) for _ in range(2)]:
        await process.until_ready()

    await trial.drain(within_s=HANDLER_S + 10)
    await fleet.stop_all()

    verdict = await trial.verdict(attempts_max=2)
    print(f"{kind.label}: {verdict.line}")
    verdict.demand()
    figures = verdict.figures
    assert (figures["starts"], figures["completions"], figures["dead"]) == (JOBS, JOBS, 0)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_job_that_comes_to_us_again_while_we_run_it_is_neither_started_nor_buried(
    queue, raw, running_worker, attempts
):
    starts, may_end = [], asyncio.Event()

    async def handler(job):
        starts.append(job.run_number)
        await may_end.wait()

    running = await running_worker(handler)
    await queue.add("slow", 1, attempts=attempts)
    await eventually(lambda: starts)
    (entry_id, consumer, *_), *_ = await raw.pending()
    # As after a sleep of the whole machine: idle for longer than the lease, and still ours.
    for _ in range(2):
        await raw(
            "XCLAIM", raw.keys.stream, "default", consumer, 0, entry_id,
            "IDLE", 3_600_000, "RETRYCOUNT", 1, "JUSTID",
        )  # fmt: skip
        await eventually(lambda: is_fresh(raw), what="our own claim")
    may_end.set()

    await eventually(lambda: running.worker.health().completed == 1)
    assert starts == [1]
    assert await raw.dlq() == []


async def is_fresh(raw):
    ((_, _, idle_ms, _),) = await raw.pending()
    return idle_ms < 60_000
