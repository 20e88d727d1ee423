"""An attempt is charged when it starts, and only then."""

from __future__ import annotations

import asyncio
import time

from chasquimq.settings import RetrySettings
from support.journal import START, read_journals
from support.processes import WorkerFleet
from support.waiting import eventually

LEASE_MS = 1000


async def test_what_waits_is_uncharged_and_what_starts_is_charged_first(queue, raw, running_worker):
    gate, counts_at_start = asyncio.Event(), []

    async def handler(job):
        counts_at_start.append(await deliveries(raw))
        await gate.wait()

    running = await running_worker(handler, concurrency=1, read_count=3)
    await queue.add_bulk(numbers(3))
    await eventually(lambda: running.worker.health().waiting == 2)

    await eventually(lambda: are_deliveries(raw, [0, 0, 1]), what="two uncharged")
    gate.set()

    await eventually(lambda: len(counts_at_start) == 3)
    assert counts_at_start[1] == [0, 1]
    assert counts_at_start[2] == [1]


async def test_fast_handlers_pay_nothing_for_it(queue, queue_name, raw, running_worker):
    async def noop(job):
        return

    running = await running_worker(noop)
    before = await calls_of(raw, "xclaim")
    await queue.add_bulk(numbers(2000))

    await eventually(lambda: running.worker.health().completed == 2000)
    assert await calls_of(raw, "xclaim") - before < 20


async def test_prefetched_jobs_of_a_killed_worker_keep_their_attempt(
    url, queue, queue_name, raw, running_worker, tmp_path
):
    seen = {}

    async def handler(job):
        seen[job.data] = (job.attempt, job.redelivered)

    fleet = WorkerFleet(url, queue_name, tmp_path)
    victim = await fleet.start("wait", concurrency=1, read_count=8, claim_min_idle_ms=LEASE_MS)
    try:
        await queue.add_bulk([{"name": "n", "data": 30 + i} for i in range(8)])
        await eventually(lambda: are_deliveries(raw, [0] * 7 + [1]), what="seven uncharged")
        victim.kill()
    finally:
        fleet.close()

    await running_worker(handler, claim_min_idle_ms=LEASE_MS)

    await eventually(lambda: len(seen) == 8)
    assert seen.pop(30) == (1, True)
    assert set(seen.values()) == {(0, False)}


async def test_a_job_that_kills_its_worker_starts_as_often_as_allowed_and_is_buried(
    url, queue, queue_name, raw, tmp_path
):
    """What was only read with it, three times over, never starts and never pays."""
    fleet = WorkerFleet(url, queue_name, tmp_path)
    options = {"max_attempts": 3, "claim_min_idle_ms": 500, "concurrency": 1, "read_count": 16}
    try:
        fleet.launch("crash_if_told", **options)
        await queue.add("n", "crash", job_id="bomb")
        await queue.add_bulk([{"name": "n", "data": "good"} for _ in range(20)])
        until_s = time.monotonic() + 30
        while not await raw.dlq():
            assert time.monotonic() < until_s, "the bomb was never buried"
            if not fleet.processes[-1].is_alive:
                fleet.launch("crash_if_told", **options)
            await asyncio.sleep(0.02)
        await eventually(lambda: is_empty(queue))
    finally:
        fleet.close()

    (entry,) = await raw.dlq()
    lines = read_journals(tmp_path)
    starts = [line.attempt for line in lines if (line.event, line.job_id) == (START, "bomb")]
    assert (entry[b"reason"], entry[b"attempt"]) == (b"crash_loop", b"3")
    assert starts == [0, 1, 2]


async def test_failures_and_crashes_spend_one_budget(raw, queue, running_worker):
    starts = []

    async def fails(job):
        starts.append(job.attempt)
        raise ValueError

    await raw("XGROUP", "CREATE", raw.keys.stream, "default", "0", "MKSTREAM")
    await queue.add("n", None, attempts=4)
    (row,) = await raw("XREADGROUP", "GROUP", "default", "dead", "STREAMS", raw.keys.stream, ">")
    await raw(
        "XCLAIM", raw.keys.stream, "default", "dead", 0, row[1][0][0],
        "IDLE", 3_600_000, "RETRYCOUNT", 2, "JUSTID",
    )  # fmt: skip
    retry = RetrySettings(initial_backoff_ms=10, max_backoff_ms=10, jitter_ms=0)
    await running_worker(fails, retry=retry)

    (entry,) = await eventually(raw.dlq)
    assert starts == [2, 3]
    assert (entry[b"reason"], entry[b"attempt"]) == (b"retries_exhausted", b"4")


def numbers(count):
    return [{"name": "n", "data": i} for i in range(count)]


async def deliveries(raw):
    return sorted(row[3] for row in await raw.pending())


async def are_deliveries(raw, counts):
    return await deliveries(raw) == counts


async def calls_of(raw, command):
    text = (await raw("INFO", "commandstats")).decode()
    for line in text.splitlines():
        if line.startswith(f"cmdstat_{command}:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


async def is_empty(queue):
    return (await queue.counts()).backlog == 0
