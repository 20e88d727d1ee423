"""Promotion while its leader dies, sleeps or is in trouble: somebody goes on, and says so if not."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter

import pytest

from chasquimq.engine.supervisor import Supervisor
from chasquimq.errors import StoreError
from support.waiting import eventually, patience

LOCK_TTL_S, POLL_S, GRACE_S = 5.0, 0.1, 1.0
DOWN_S = 5.0
JOBS = 100
# A server that only this test may flush.
pytestmark = pytest.mark.own_server


async def leader_pid(raw):
    """The process that leads, as the lock says: its consumer is host:pid:random."""
    holder = await raw("GET", raw.keys.promoter_lock)
    return int(holder.split(b":")[1]) if holder else None


async def has_another_leader(raw, pid):
    return await leader_pid(raw) not in (None, pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_another_worker_promotes_soon_after_the_leader_is_gone(
    fleet, trial, raw, kind, number
):
    for process in [fleet.launch("wait", claim_min_idle_ms=1_000) for _ in range(2)]:
        await process.until_ready()
    first = await eventually(lambda: leader_pid(raw), what="a leader")
    leader = next(one for one in fleet.processes if one.pid == first)
    await trial.add_bulk(
        [{"name": "later", "data": 0, "delay_ms": at * 50} for at in range(1, JOBS + 1)]
    )

    gone_s = time.monotonic()
    (fleet.kill if number == signal.SIGKILL else fleet.freeze)(leader)
    limit_s = LOCK_TTL_S + POLL_S + GRACE_S
    await eventually(lambda: has_another_leader(raw, first), within_s=limit_s + 1)
    handover_s = time.monotonic() - gone_s
    await trial.drain()
    drained_s = time.monotonic() - gone_s
    if number == signal.SIGSTOP:
        fleet.thaw(leader)
    await trial.add("later", 0, delay_ms=500)
    await trial.drain()
    await fleet.stop_all()

    verdict = await trial.verdict(more_faults=fleet.faults)
    print(
        f"{kind.label}, {number.name}: handed over after {handover_s:.2f} s, "
        f"{JOBS} jobs done after {drained_s:.2f} s; {verdict.line}"
    )
    verdict.demand()
    assert handover_s <= limit_s * patience()
    assert verdict.figures["extra_starts"] <= patience()


async def test_trouble_with_the_delayed_set_shows_in_health_is_told_once_and_heals(
    queue, raw, running_worker, kind, caplog
):
    ran = []

    async def handler(job):
        ran.append(job.id)

    running = await running_worker(handler)
    worker = running.worker
    await eventually(lambda: raw("EXISTS", raw.keys.promoter_lock))
    await raw("SET", raw.keys.delayed, "not a sorted set")
    hurt_s = time.monotonic()

    ready = await queue.add("ready", 1)
    await eventually(lambda: ran == [ready.id])
    with caplog.at_level(logging.WARNING, logger="chasquimq"):
        await eventually(lambda: worker.health().loops_down, within_s=DOWN_S + 3)
        down_s = time.monotonic() - hurt_s
        await asyncio.sleep(1.5)
    down, told = worker.health().loops_down, [one for one in caplog.records if is_told(one)]
    await raw("DEL", raw.keys.delayed)
    healed_s = time.monotonic()
    later = await queue.add("later", 1, delay_ms=10)
    await eventually(lambda: later.id in ran)
    ran_s = time.monotonic() - healed_s
    await eventually(lambda: worker.health().is_ok, within_s=5)

    print(
        f"{kind.label}: down after {down_s:.2f} s, ran {ran_s:.2f} s after the cure, "
        f"healthy after {time.monotonic() - healed_s:.2f} s"
    )
    assert "WRONGTYPE" in down["promoter"]
    assert set(down) <= {"promoter", "retrier"}
    assert len(told) == 1
    assert ran_s <= 2 * patience()


def is_told(record):
    return getattr(record, "chasqui_loop", "") == "promoter"


async def test_forgotten_scripts_cost_no_job(queue, raw, running_worker):
    runs = Counter()

    async def handler(job):
        runs[job.id] += 1
        if job.data == "once" and runs[job.id] == 1:
            raise ValueError("once")

    await running_worker(handler, claim_min_idle_ms=300)
    jobs = []
    for at in range(30):
        await raw("SCRIPT", "FLUSH")
        spec = {"name": "j", "data": "once", "backoff": {"kind": "fixed", "delay_ms": 20}}
        jobs += await queue.add_bulk([spec, spec | {"delay_ms": 10 + at}])
        await asyncio.sleep(0.02)

    await eventually(lambda: is_done(queue))
    assert runs == {job.id: 2 for job in jobs}
    assert await raw.dlq() == []


async def test_after_everything_was_flushed_new_jobs_run_within_two_seconds(
    queue, raw, running_worker, kind
):
    ran_s = {}

    async def handler(job):
        await asyncio.sleep(job.data)
        ran_s[job.id] = time.monotonic()

    running = await running_worker(handler, claim_min_idle_ms=1_000)
    await queue.add_bulk([{"name": "held", "data": 0.5} for _ in range(20)])
    await queue.add_bulk([{"name": "gone", "data": 0, "delay_ms": 500} for _ in range(20)])
    await eventually(lambda: running.worker.health().running == 20)

    await raw("FLUSHALL")
    flushed_s = time.monotonic()
    ready = await queue.add("ready", 0)
    later = await queue.add("later", 0, delay_ms=100)
    await eventually(lambda: {ready.id, later.id} <= set(ran_s))

    late_s = max(ran_s[ready.id], ran_s[later.id]) - flushed_s
    print(f"{kind.label}: new jobs ran within {late_s:.2f} s of the flush")
    assert late_s <= 2 * patience()
    await eventually(lambda: is_done(queue))
    await eventually(lambda: running.worker.health().is_ok)
    await eventually(lambda: running.worker.health().unconfirmed == 0)


class Failing:
    """A loop that never gets far."""

    name = "failing"

    async def run(self):
        raise StoreError("no")

    def stop(self):
        raise AssertionError("nobody stops it")


async def test_a_failing_loop_is_tried_at_least_once_a_second_and_never_in_a_spin(monkeypatch):
    pauses_s, yield_to_others = [], asyncio.sleep

    async def pause(seconds):
        pauses_s.append(seconds)
        await yield_to_others(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    keeping = asyncio.create_task(Supervisor().keep(Failing()))
    while len(pauses_s) < 1_000:
        await yield_to_others(0)
    keeping.cancel()

    assert min(pauses_s) >= 0.025
    assert max(pauses_s) <= 1


async def is_done(queue):
    return (await queue.counts()).backlog == 0
