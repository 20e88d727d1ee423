"""A network that is slow, torn, frozen and forgetful: nothing is lost, and nothing is added twice."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress

import pytest

from chasquimq import Queue, Worker
from chasquimq.store.net.connect import dial_delay_ms
from support import fault_worker
from support.faultproxy import FaultProxy
from support.journal import START, read_journals
from support.trial import Trial
from support.waiting import eventually, patience
from support.workers import RunningWorker

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
SEED = int(os.environ.get("CHASQUI_TEST_SEED", "5"))
LEASE_MS = 1000
OPTIONS = {"concurrency": 4, "claim_min_idle_ms": LEASE_MS}
MODE_S = 5.0 if IS_BIG else 0.7
LOST_SHARE = 0.25
OUTAGE_S = 60.0 if IS_BIG else 6.0
# Reads, writes and leases each have one.
CONNECTIONS = 3
# The longest pause between two dials, and a second for all that follows.
BACK_S = 6.0


@pytest.fixture
async def proxy(url):
    async with FaultProxy(url) as proxy:
        yield proxy


@pytest.fixture
async def far_trial(proxy, url, queue_name, tmp_path):
    """A producer behind the proxy."""
    async with Queue(queue_name, redis_url=proxy.url) as queue:
        trial = Trial(queue, url, tmp_path, seed=SEED)
        yield trial
        proxy.calm()
        trial.close()


# ── one mode after the other ─────────────────────────────────────────────────────────────────


async def slow(proxy):
    proxy.latency_s, proxy.jitter_s = 0.02, 0.03
    await asyncio.sleep(MODE_S)


async def narrow(proxy):
    proxy.bytes_per_s = 100_000.0
    await asyncio.sleep(MODE_S)


async def sliced(proxy):
    proxy.slice_bytes = 1
    await asyncio.sleep(MODE_S)


async def cut(proxy):
    proxy.cut()
    await asyncio.sleep(MODE_S)


async def closed(proxy):
    proxy.close()
    await asyncio.sleep(MODE_S)


async def torn(proxy):
    proxy.cut_after(150)
    await asyncio.sleep(MODE_S)


async def mute(proxy):
    proxy.blackhole()
    proxy.cut()
    await asyncio.sleep(MODE_S)
    proxy.cut()


async def frozen(proxy):
    proxy.freeze()
    await asyncio.sleep(3 * LEASE_MS / 1000)
    proxy.thaw()


async def silenced(proxy):
    proxy.drop_replies()
    await asyncio.sleep(MODE_S)
    proxy.cut()


GENTLE = (slow, narrow, sliced)
HARSH = (cut, frozen, closed, torn, mute, silenced)


@pytest.mark.timeout(300)
async def test_no_mode_of_a_bad_network_loses_or_doubles_a_job(
    proxy, far_trial, fleet, url, tmp_path, kind
):
    far = await fleet.start("wait", url=proxy.url, **OPTIONS)
    near = await fleet.start("wait", **OPTIONS)
    adding = asyncio.create_task(add_all_the_time(far_trial))

    for mode in (*GENTLE, *HARSH):
        if mode in GENTLE:
            await mode(proxy)
        else:
            await far_trial.add_bulk([{"name": "long", "data": 1.5} for _ in range(4)])
            with far_trial.fault("cut"):
                await mode(proxy)
        proxy.calm()
    adding.cancel()
    calm_s = time.monotonic()
    await far_trial.drain(within_s=40)
    await fleet.stop(near)
    await far_trial.add("last", 0.0)
    await far_trial.drain(within_s=20)
    await fleet.stop(far)

    verdict = await far_trial.verdict(more_faults=fleet.faults)
    lines = read_journals(tmp_path)
    back_s = min(one.t_s for one in lines if is_start_of(one, far, since_s=calm_s)) - calm_s
    print(f"{kind.label}: the far worker was back after {back_s:.2f} s; {verdict.line}")
    verdict.demand()
    assert [one for one in lines if one.event == "lease_lost"]


async def add_all_the_time(trial):
    """Small jobs through the bad network; an add that is cut off goes on by itself."""
    with suppress(asyncio.CancelledError):
        while True:
            jobs = [{"name": "short", "data": 0.01} for _ in range(3)]
            await asyncio.shield(asyncio.ensure_future(trial.add_bulk(jobs)))
            await asyncio.sleep(0.05)


def is_start_of(line, process, since_s):
    return line.event == START and line.pid == process.pid and line.t_s > since_s


# ── lost replies ─────────────────────────────────────────────────────────────────────────────


async def test_with_a_quarter_of_all_replies_lost_every_job_is_added_and_run_once(
    proxy, far_trial, queue_name, monkeypatch, kind
):
    # A connection that breaks after a few commands must not cost a long pause each time.
    monkeypatch.setattr("chasquimq.store.net.connect._YOUNG_S", 0.0)
    handler = far_trial.watched(fault_worker.fated.__wrapped__)
    dice = random.Random(SEED)
    running = RunningWorker(
        Worker(queue_name, handler, redis_url=proxy.url, concurrency=8, history=False)
    )
    await running.until_consuming()
    # The first dial of a connection is tried once, so it is made while all is well.
    await far_trial.queue.counts()
    proxy.lose_replies(LOST_SHARE, [b"XADD", b"EVALSHA", b"XACKDEL"], seed=SEED)

    for _ in range(60):
        fates = dice.choices(["completes", "fails once", "gives up"], [8, 1, 1], k=5)
        backoff = {"kind": "fixed", "delay_ms": 20, "jitter_ms": 0}
        await far_trial.add_bulk([{"name": "n", "data": f, "backoff": backoff} for f in fates])
    lost = proxy.lost_count
    proxy.calm()
    await far_trial.drain(within_s=40)
    await running.stop()

    verdict = await far_trial.verdict()
    health = running.worker.health()
    print(f"{kind.label}: {lost} replies lost, {health.unproven_outcomes} unproven; {verdict.line}")
    verdict.demand()
    assert lost >= 8
    assert verdict.figures["jobs"] == 300
    assert verdict.figures["extra_starts"] == 0


# ── dials ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(240)
async def test_an_outage_is_no_storm_of_dials_and_its_end_is_noticed(
    proxy, far_trial, queue_name, tmp_path, kind
):
    gate = asyncio.Event()

    async def handler(job):
        await gate.wait()

    worker = Worker(
        queue_name, far_trial.watched(handler), redis_url=proxy.url, concurrency=2,
        claim_min_idle_ms=3_000,
    )  # fmt: skip
    running = RunningWorker(worker)
    await running.until_consuming()
    await far_trial.add_bulk([{"name": "n", "data": i} for i in range(3)])
    await eventually(lambda: worker.health().running == 2)

    dialled = proxy.accept_count
    proxy.slam()
    await asyncio.sleep(OUTAGE_S)
    dials = proxy.accept_count - dialled
    gate.set()
    proxy.welcome()
    welcome_s = time.monotonic()
    last = await far_trial.add("n", 3)
    await far_trial.drain(within_s=BACK_S + 10)
    done_s = time.monotonic() - welcome_s
    await running.stop()

    back_s = started_s(tmp_path, last.id) - welcome_s
    print(
        f"{kind.label}: {dials} dials in {OUTAGE_S:.0f} s; a job that was added after its end "
        f"started {back_s:.2f} s after it, and all were done after {done_s:.2f} s"
    )
    (await far_trial.verdict()).demand()
    assert back_s <= BACK_S * patience()
    assert dials <= CONNECTIONS * (dials_within(OUTAGE_S) + 1)
    assert dials_within(60) <= 15


def started_s(folder, job_id: str) -> float:
    lines = read_journals(folder)
    return min(one.t_s for one in lines if one.event == START and one.job_id == job_id)


def dials_within(seconds: float) -> int:
    """How often one connection dials at most while nobody answers."""
    dials, at_ms = 0, 0.0
    while at_ms <= seconds * 1000:
        dials += 1
        at_ms += dial_delay_ms(dials, min)
    return dials
