"""Jobs that kill their process, among good ones: only the killers pay with their lives."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from support.journal import START, read_journals

GOOD, KILLERS, WORKERS = 600, 3, 4
ATTEMPTS_MAX = 3
LEASE_MS = 500
WITHIN_S = 90
OPTIONS = {"concurrency": 8, "claim_min_idle_ms": LEASE_MS, "max_attempts": ATTEMPTS_MAX}


async def test_jobs_that_kill_their_process_are_the_only_ones_buried(
    fleet, trial, queue, tmp_path, kind
):
    for process in [fleet.launch("dies_if_told", **OPTIONS) for _ in range(WORKERS)]:
        await process.until_ready()
    jobs = await trial.add_bulk([{"name": "n", "data": data} for data in mixed()])
    killers = {job.id for job, data in zip(jobs, mixed(), strict=True) if data == "dies"}

    begun_s = time.monotonic()
    await keep_alive(fleet, queue)
    await fleet.stop_all()

    dead = {letter["job_id"]: letter["reason"] for letter in await queue.peek_dlq(1_000)}
    runs = [line for line in read_journals(tmp_path) if line.event == START]
    starts = Counter(line.job_id for line in runs)
    print(
        f"{kind.label}: {len(fleet.processes) - WORKERS} crashes in "
        f"{time.monotonic() - begun_s:.1f} s, {len(dead)} buried, {len(runs)} starts, "
        f"good jobs started at most {max(starts[one] for one in starts if one not in killers)}"
    )
    assert dead == dict.fromkeys(killers, "crash_loop")
    assert max(starts.values()) <= ATTEMPTS_MAX


def mixed() -> list[str]:
    """Good jobs with killers spread among them."""
    data = ["works"] * GOOD
    for at in range(KILLERS):
        data.insert(GOOD * (2 * at + 1) // (2 * KILLERS), "dies")
    return data


async def keep_alive(fleet, queue, handler: str = "dies_if_told") -> None:
    """Replace workers that die, as an orchestrator would, until the queue is empty."""
    until_s = time.monotonic() + WITHIN_S
    while (await queue.counts()).backlog:
        assert time.monotonic() < until_s, "the queue never became empty"
        for process in [one for one in fleet.processes if not one.is_alive and not one.exited_s]:
            await fleet.until_dead(process)
            fleet.launch(handler, **OPTIONS)
        await asyncio.sleep(0.02)


async def test_a_job_that_ended_is_not_charged_for_the_crash_that_follows(
    fleet, trial, queue, raw, tmp_path
):
    """All are on their last attempt, and every second one kills its process at once."""
    data = ["good", "crash"] * 4
    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "$", "MKSTREAM")
    jobs = await trial.add_bulk([{"name": "n", "data": one} for one in data])
    await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", raw.keys.stream, ">")
    for row in await raw.pending():
        await raw(
            "XCLAIM", raw.keys.stream, "default", "dead", 0, row[0],
            "IDLE", 3_600_000, "RETRYCOUNT", ATTEMPTS_MAX - 1, "JUSTID",
        )  # fmt: skip

    fleet.launch("crash_if_told", **OPTIONS)
    await keep_alive(fleet, queue, "crash_if_told")
    await fleet.stop_all()

    dead = {letter["job_id"] for letter in await queue.peek_dlq(100)}
    starts = Counter(line.job_id for line in read_journals(tmp_path) if line.event == START)
    assert dead == {job.id for job in jobs[1::2]}
    assert set(starts.values()) == {1}
