"""Sinks that raise, block or take long to wake up: no job pays for them, and one line tells."""

from __future__ import annotations

import importlib
import logging
import re
import sys
import time
from collections import Counter

import pytest

from chasquimq import InMemorySink, MetricsSink, UnrecoverableError, Worker
from chasquimq.settings import RetrySettings
from chasquimq.telemetry.sink import RECORD_METHODS
from support.waiting import eventually

SOON = RetrySettings(initial_backoff_ms=10, max_backoff_ms=20, jitter_ms=0)
BLOCK_S = 0.001
LEASE_MS = 1_000
SLOW_IMPORT_S = 0.6


class Obstinate(MetricsSink):
    """Does the same, whatever it is told of that it listens to."""

    def __init__(self, do, happenings=RECORD_METHODS) -> None:
        self.calls = 0
        for happening in happenings:
            setattr(self, happening, self._told)
        self._do = do

    def _told(self, record) -> None:
        self.calls += 1
        self._do()


class Runs:
    """A handler that knows how often each job was run."""

    def __init__(self) -> None:
        self.counts = Counter()

    async def handler(self, job):
        self.counts[job.id] += 1
        if job.name == "fails once" and job.attempt == 0:
            raise ValueError
        if job.name == "gives up":
            raise UnrecoverableError


@pytest.fixture
def runs():
    return Runs()


def lines_about_sinks(caplog) -> list[str]:
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []
    return [one.getMessage() for one in caplog.records if "metrics sink" in one.getMessage()]


@pytest.mark.parametrize("error", [ValueError, BaseException], ids=lambda error: error.__name__)
async def test_a_sink_that_raises_harms_no_job_and_is_told_once(
    queue, queue_name, url, runs, caplog, error
):
    def fail():
        raise error

    sink = Obstinate(fail)
    jobs = [{"name": name, "data": 1} for name in ("plain",) * 500 + ("fails once",) * 20]
    added = await queue.add_bulk([*jobs, {"name": "gives up", "data": 1}])

    worker = Worker(queue_name, runs.handler, redis_url=url, retry=SOON, metrics=sink)
    await worker.run_until_idle()

    health = worker.health()
    assert (health.completed, health.failed, health.buried) == (520, 21, 1)
    assert runs.counts.keys() == {job.id for job in added}
    assert runs.counts.total() == 541
    (line,) = lines_about_sinks(caplog)
    assert re.fullmatch(
        r"the metrics sink Obstinate raised in \w+, and its record was dropped", line
    )
    assert sink.calls > 1


async def test_a_sink_that_blocks_costs_a_millisecond_a_batch_not_a_job(
    queue, queue_name, url, runs, caplog
):
    sink = Obstinate(lambda: time.sleep(BLOCK_S))
    count = 10_000
    await queue.add_bulk([{"name": "plain", "data": at} for at in range(count)])

    began_s = time.monotonic()
    worker = Worker(queue_name, runs.handler, redis_url=url, metrics=sink)
    await worker.run_until_idle()
    took_s = time.monotonic() - began_s

    assert set(runs.counts.values()) == {1}
    assert worker.health().completed == len(runs.counts) == count
    assert took_s < count * BLOCK_S / 2
    assert sink.calls < count / 4
    assert len(lines_about_sinks(caplog)) <= 1


@pytest.fixture
def slow_module(tmp_path, monkeypatch):
    (tmp_path / "slow_exporter.py").write_text(f"import time\ntime.sleep({SLOW_IMPORT_S})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "slow_exporter"
    sys.modules.pop("slow_exporter", None)


async def test_a_sink_that_takes_long_to_import_costs_no_lease_and_is_told_once(
    queue, running_worker, runs, slow_module, caplog
):
    other = InMemorySink()
    sink = Obstinate(lambda: importlib.import_module(slow_module), ["job_outcomes"])
    options = {"claim_min_idle_ms": LEASE_MS}
    first = await running_worker(runs.handler, metrics=sink, **options)
    await running_worker(runs.handler, metrics=other, **options)

    await queue.add_bulk([{"name": "plain", "data": at} for at in range(1_000)])
    await eventually(lambda: runs.counts.total() >= 1_000)

    assert slow_module in sys.modules
    assert set(runs.counts.values()) == {1}
    assert other.entries_reclaimed() == 0
    assert first.worker.health().leases_lost == 0
    assert lines_about_sinks(caplog) == [
        "the metrics sink Obstinate takes more than a fifth of the worker's time in job_outcomes"
    ]
