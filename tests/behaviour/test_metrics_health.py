"""Metrics of the worker itself: how it is doing each second, and what it had to give up."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import InMemorySink, MetricsSink, NoopSink, QueueLabeled, Worker
from chasquimq.telemetry.sink import WorkerHealth
from support.faultproxy import FaultProxy
from support.waiting import eventually
from support.workers import RunningWorker

QUIET = {"events": "off", "history": False}


async def noop(job):
    return


def last(sink: InMemorySink) -> WorkerHealth | None:
    told = sink.records(WorkerHealth)
    return told[-1] if told else None


async def test_a_sink_hears_each_second_how_the_worker_is_doing(queue, running_worker):
    gate, sink = asyncio.Event(), InMemorySink()

    async def waits(job):
        await gate.wait()

    await running_worker(waits, metrics=sink, concurrency=2)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(3)])
    await eventually(lambda: (health := last(sink)) and health.running == 2)

    health = last(sink)
    assert (health.is_consuming, health.has_trusted_leases, health.loops_down) == (True, True, 0)
    assert (health.running, health.waiting, health.unconfirmed) == (2, 1, 0)
    assert health.lease_beat_age_ms < 15_000
    count = len(sink.records(WorkerHealth))
    await eventually(lambda: len(sink.records(WorkerHealth)) >= count + 2, within_s=5)
    gate.set()


async def test_a_worker_that_has_stopped_is_told_to_consume_no_more(queue, running_worker):
    sink = InMemorySink()
    running = await running_worker(noop, metrics=sink)
    await eventually(lambda: (health := last(sink)) and health.is_consuming)

    await running.stop()

    assert (last(sink).is_consuming, last(sink).running) == (False, 0)


@pytest.mark.parametrize("command", ["DEL", "XGROUP DESTROY"])
async def test_a_group_that_was_deleted_and_made_again_is_counted_and_logged(
    queue, raw, running_worker, caplog, command
):
    sink = InMemorySink()
    await running_worker(noop, metrics=sink)
    group = ["default"] if command == "XGROUP DESTROY" else []

    await raw(*command.split(), raw.keys.stream, *group)
    await eventually(sink.groups_recreated, within_s=5)
    await queue.add("n", "after")
    await eventually(sink.jobs_completed, within_s=5)

    assert sink.groups_recreated() == 1
    said = [line for line in caplog.messages if "was deleted and has been made again" in line]
    assert said == [line for line in said if repr(queue.name) in line]
    assert len(said) == 1


async def test_events_that_the_server_refuses_are_told_as_dropped(queue, raw, running_worker):
    sink = InMemorySink()
    await raw("SET", raw.keys.events, "no stream")
    running = await running_worker(noop, metrics=sink, events="terminal")

    await queue.add_bulk([{"name": "n", "data": at} for at in range(7)])
    await eventually(sink.events_dropped)
    await running.stop()

    assert running.worker.health().completed == 7
    assert (sink.events_dropped(), sink.history_rows_dropped()) == (7, 0)


async def test_waiting_events_that_the_server_refuses_are_told_as_dropped(
    queue, raw, running_worker
):
    sink = InMemorySink()
    await raw("SET", raw.keys.events, "no stream")
    await queue.add_bulk([{"name": "n", "data": at, "delay_ms": 1} for at in range(50)])
    running = await running_worker(noop, metrics=sink, events="full")

    await eventually(lambda: running.worker.health().completed == 50)
    await running.stop()

    # Each was made ready, started and completed; now and then the queue was told to be drained.
    assert 150 <= sink.events_dropped() < 200


async def test_events_whose_reply_was_lost_are_told_as_unproven(url, queue, queue_name, raw):
    gate, sink = asyncio.Event(), InMemorySink()

    async with FaultProxy(url) as proxy:

        async def waits(job):
            # The start is announced right after this.
            proxy.drop_replies()
            await gate.wait()

        worker = Worker(queue_name, waits, redis_url=proxy.url, metrics=sink, history=False)
        running = RunningWorker(worker)
        await running.until_consuming()
        await queue.add("n", 1)

        async def is_written():
            return await raw("XLEN", raw.keys.events) == 1

        await eventually(is_written)
        proxy.cut()
        proxy.thaw()
        gate.set()
        await eventually(lambda: worker.health().completed == 1)
        await running.stop()

    assert (sink.events_unproven(), sink.events_dropped()) == (1, 0)


async def test_history_that_cannot_be_written_is_told_as_dropped(queue, raw, running_worker):
    sink = InMemorySink()
    await raw("SET", raw.keys.history, "no stream")
    await queue.add_bulk([{"name": "n", "data": at} for at in range(22_000)])
    running = await running_worker(noop, metrics=sink, events="off")

    await eventually(lambda: running.worker.health().completed == 22_000, within_s=30)
    await running.stop()

    assert sink.history_rows_dropped() == 22_000
    assert sink.events_dropped() == 0


@pytest.mark.parametrize(
    "sink",
    [
        pytest.param(None, id="none"),
        pytest.param(NoopSink(), id="noop"),
        pytest.param(MetricsSink(), id="nothing overridden"),
        pytest.param(QueueLabeled(NoopSink(), "q"), id="labelled noop"),
    ],
)
async def test_a_sink_that_listens_to_nothing_is_bound_away(running_worker, sink):
    running = await running_worker(noop, metrics=sink, **QUIET)
    pipeline = running.worker._session.pipeline

    assert (pipeline.settlement.listener, pipeline.reporter) == (None, None)
    assert pipeline.upkeep.promoter._sink is None


class OnlyRuns(MetricsSink):
    def job_outcome(self, outcome):
        pass


class OnlyHealth(MetricsSink):
    def worker_health(self, health):
        pass


async def test_nobody_reports_to_a_sink_that_hears_only_of_jobs(running_worker):
    running = await running_worker(noop, metrics=OnlyRuns(), **QUIET)

    assert running.worker._session.pipeline.reporter is None


async def test_nothing_is_made_for_jobs_when_a_sink_hears_only_of_health(running_worker):
    running = await running_worker(noop, metrics=OnlyHealth(), **QUIET)

    assert running.worker._session.pipeline.settlement.listener is None
