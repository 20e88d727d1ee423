"""Depth and lag of the delayed set on two pages, while the lead of promotion goes from one on."""

from __future__ import annotations

from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from chasquimq import Worker
from chasquimq.telemetry.prometheus import PrometheusSink
from support.faultproxy import FaultProxy
from support.waiting import eventually
from support.workers import RunningWorker

HOUR_MS = 3_600_000
# A lock lasts five seconds, and whoever waits for it looks ten times a second.
HANDOVER_S_MAX = 8.0


async def noop(job):
    return


@asynccontextmanager
async def watched_worker(queue_name: str, url: str):
    """A worker and the sink that it tells."""
    sink = PrometheusSink(registry=CollectorRegistry())
    running = RunningWorker(Worker(queue_name, noop, redis_url=url, metrics=sink))
    try:
        await running.until_consuming()
        yield running, sink
    finally:
        await running.stop()


def depth(sink: PrometheusSink) -> float | None:
    families = text_string_to_metric_families(sink.exposition().decode())
    samples = [s.value for f in families if f.name == "chasquimq_promoter_depth" for s in f.samples]
    return samples[0] if samples else None


async def test_a_leader_that_stops_shows_no_depth_and_the_next_one_does(url, queue_name, queue):
    await queue.add("later", 1, delay_ms=HOUR_MS)
    async with watched_worker(queue_name, url) as (leader, first):
        await eventually(lambda: depth(first) == 1)
        async with watched_worker(queue_name, url) as (_, second):
            assert depth(second) is None

            await leader.stop()

            assert depth(first) is None
            await eventually(lambda: depth(second) == 1)


async def test_a_leader_that_is_cut_off_shows_no_depth_when_its_lock_is_gone(
    url, queue_name, queue
):
    await queue.add("later", 1, delay_ms=HOUR_MS)
    async with FaultProxy(url) as proxy, watched_worker(queue_name, proxy.url) as (_, first):
        await eventually(lambda: depth(first) == 1)
        async with watched_worker(queue_name, url) as (_, second):
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: depth(second) == 1, within_s=HANDOVER_S_MAX)

            assert depth(first) is None
            await proxy.accept()


async def test_a_leader_in_a_silent_network_shows_no_depth_when_its_lock_is_gone(
    url, queue_name, queue
):
    await queue.add("later", 1, delay_ms=HOUR_MS)
    async with FaultProxy(url) as proxy, watched_worker(queue_name, proxy.url) as (_, first):
        await eventually(lambda: depth(first) == 1)

        proxy.freeze()

        await eventually(lambda: depth(first) is None, within_s=HANDOVER_S_MAX)
        proxy.thaw()
        await eventually(lambda: depth(first) == 1, within_s=HANDOVER_S_MAX)
