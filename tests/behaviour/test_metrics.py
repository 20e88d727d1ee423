"""Metrics: each call of a handler is counted once, and nothing else is counted as one."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections import Counter

import pytest

from chasquimq import InMemorySink, MetricsSink, RetryLater, UnrecoverableError, Worker
from chasquimq.settings import RetrySettings
from chasquimq.telemetry.sink import DlqRouted, JobOutcome, RetryScheduled, StaleOutcomes
from chasquimq.wire.envelope import encode_envelope
from support.waiting import eventually

SOON = RetrySettings(
    initial_backoff_ms=10, max_backoff_ms=20, jitter_ms=0,
    unknown_name_retry_ms=50, unknown_name_for_ms=300,
)  # fmt: skip
VANISH = """
import os

def vanish(job):
    with open(job.data, "a") as calls:
        calls.write("vanish\\n")
    os._exit(7)
"""
JOBS = [
    *({"name": "completes", "data": at} for at in range(20)),
    {"name": "fails once", "data": None},
    {"name": "fails twice", "data": None, "attempts": 2},
    {"name": "gives up", "data": None},
    {"name": "snoozes twice", "data": None},
    {"name": "times out", "data": None, "attempts": 1, "timeout_ms": 50},
    {"name": "nobody's", "data": None},
]
CALLS = {
    "completes": 20, "fails once": 2, "fails twice": 2, "gives up": 1, "snoozes twice": 3,
    "times out": 1, "vanishes": 2,
}  # fmt: skip


class Called:
    """Handlers of every kind, and how often each was called."""

    def __init__(self, vanish, log) -> None:
        self.log = log
        self.handlers = {
            "completes": self.completes, "fails once": self.fails_once,
            "fails twice": self.fails, "gives up": self.gives_up,
            "snoozes twice": self.snoozes_twice, "times out": self.times_out, "vanishes": vanish,
        }  # fmt: skip
        self._calls = Counter()

    @property
    def calls(self) -> dict[str, int]:
        vanished = len(self.log.read_text().splitlines()) if self.log.exists() else 0
        return {**self._calls, "vanishes": vanished}

    async def completes(self, job):
        self._calls[job.name] += 1

    async def fails_once(self, job):
        self._calls[job.name] += 1
        if job.attempt == 0:
            raise ValueError

    async def fails(self, job):
        self._calls[job.name] += 1
        await asyncio.sleep(0)
        raise ValueError

    async def gives_up(self, job):
        self._calls[job.name] += 1
        raise UnrecoverableError

    async def snoozes_twice(self, job):
        self._calls[job.name] += 1
        if self._calls[job.name] < 3:
            raise RetryLater(10)

    async def times_out(self, job):
        self._calls[job.name] += 1
        await asyncio.sleep(60)


@pytest.fixture
def called(tmp_path, monkeypatch):
    (tmp_path / "metrics_handlers.py").write_text(VANISH)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Called(importlib.import_module("metrics_handlers").vanish, tmp_path / "calls")
    del sys.modules["metrics_handlers"]


@pytest.fixture
async def told(queue, queue_name, url, called):
    """What a sink was told of one job of every kind, run to its end."""
    sink = InMemorySink()
    await queue.add_bulk([*JOBS, {"name": "vanishes", "data": str(called.log), "attempts": 2}])
    worker = Worker(
        queue_name, called.handlers, redis_url=url, retry=SOON, pool="process", pool_size=1,
        metrics=sink,
    )  # fmt: skip
    await worker.run_until_idle()
    assert called.calls == CALLS
    return sink


def kinds(sink: InMemorySink, name: str) -> list[str]:
    return [outcome.kind for outcome in sink.records(JobOutcome) if outcome.name == name]


async def test_every_call_of_a_handler_is_one_outcome(told):
    assert Counter(outcome.name for outcome in told.records(JobOutcome)) == CALLS
    assert told.handler_invocations() == sum(CALLS.values())
    ends = (told.jobs_completed(), told.jobs_failed(), told.jobs_snoozed())
    assert (sum(ends), ends) == (sum(CALLS.values()), (22, 7, 2))


async def test_a_snooze_neither_completed_nor_failed(told):
    assert kinds(told, "snoozes twice") == ["snoozed", "snoozed", "ok"]
    assert told.jobs_failed("snoozes twice") == 0


async def test_a_name_that_nobody_handles_has_no_outcome(told):
    (burial,) = [one for one in told.records(DlqRouted) if one.name == "nobody's"]

    assert kinds(told, "nobody's") == []
    assert (burial.reason, burial.attempt) == ("unknown_name", 0)
    assert told.total_retries("nobody's") >= 1


async def test_a_crash_is_a_panic_and_a_timeout_an_error(told):
    assert kinds(told, "vanishes") == ["panic", "panic"]
    assert kinds(told, "times out") == ["err"]
    assert kinds(told, "fails twice") == ["err", "err"]


async def test_retries_and_burials_have_the_numbers_of_their_runs(told):
    retries = [one.attempt for one in told.records(RetryScheduled) if one.name == "fails twice"]
    buried = {one.name: one.attempt for one in told.records(DlqRouted)}

    assert retries == [2]
    assert buried == {
        "fails twice": 2, "gives up": 1, "times out": 1, "vanishes": 2, "nobody's": 0,
    }  # fmt: skip


async def test_what_is_refused_on_arrival_is_buried_with_attempt_0_and_has_no_outcome(
    queue, raw, running_worker
):
    sink = InMemorySink()
    spent = encode_envelope("spent", b"\xc0", 0, attempt=25)
    await raw("XADD", raw.keys.stream, "*", "d", spent, "n", "spent")
    await queue.add("late", None, expires_ms=1)
    await raw("XADD", raw.keys.stream, "*", "x", "no payload")
    await raw("XADD", raw.keys.stream, "*", "d", "no envelope", "n", "odd")
    await raw("XADD", raw.keys.stream, "*", "d", b"\x00" * 2_000, "n", "big")

    await running_worker(noop, metrics=sink, max_payload_bytes=1_000)
    await eventually(lambda: sink.dlq_count() == 5)

    assert sorted((one.reason, one.attempt, one.name) for one in sink.records(DlqRouted)) == [
        ("decode_failed", 0, "odd"), ("expired", 0, "late"), ("malformed", 0, ""),
        ("oversize_payload", 0, "big"), ("retries_exhausted", 0, "spent"),
    ]  # fmt: skip
    assert sink.records(JobOutcome) == []


async def test_runs_that_came_too_late_are_outcomes_too_and_told_in_one_batch(
    queue, raw, running_worker
):
    gate, started, sink = asyncio.Event(), [], Batches()

    async def waits(job):
        started.append(job.id)
        await gate.wait()

    await running_worker(waits, metrics=sink)
    await queue.add_bulk([{"name": "n", "data": at} for at in range(5)])
    await eventually(lambda: len(started) == 5)
    held = [row[0] for row in await raw.pending()]
    await raw("XACK", raw.keys.stream, "default", *held)
    gate.set()

    await eventually(lambda: sink.stale == 5)
    assert [[one.kind for one in batch] for batch in sink.batches] == [["ok"] * 5]


class Batches(MetricsSink):
    """Keeps the batches as they come."""

    def __init__(self) -> None:
        self.batches = []
        self.stale = 0

    def job_outcomes(self, batch):
        self.batches.append(batch)

    def stale_outcomes(self, outcomes: StaleOutcomes):
        self.stale += outcomes.stale


async def noop(job):
    return
