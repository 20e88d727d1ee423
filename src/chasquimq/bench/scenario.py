"""What is measured: the scenarios, and the plan that one measuring process gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Act = Literal["add", "consume"]
LoopKind = Literal["asyncio", "uvloop"]

QUEUE = "bench"
JOB_NAME = "bench"
# Peers that only look at the stream know no queue, so the key is spelled here.
STREAM = "{chasqui:bench}:stream"
DELAYED = "{chasqui:bench}:delayed"
DLQ = "{chasqui:bench}:dlq"
EVENTS = "{chasqui:bench}:events"
HISTORY = "{chasqui:bench}:history"
# 101 bytes of MessagePack.
PAYLOAD = {f"k{i}": f"v{i}" for i in range(15)}
CONCURRENCY = 100
JOBS_PER_PRELOAD = 1_000
# No side may take longer than this, however slow the machine is.
_WAIT_S_MIN = 60
_JOBS_PER_S_MIN = 500


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does beyond running each job once."""

    delay_ms: int = 0
    fails_once: bool = False
    # What the handler returns, and the worker keeps.
    result: str | None = None
    has_events: bool = False
    # A record of every attempt, which only we keep.
    has_history: bool = False

    @property
    def needs_promotion(self) -> bool:
        return self.delay_ms > 0 or self.fails_once

    @property
    def runs_per_job(self) -> int:
        return 2 if self.fails_once else 1


RUN_ONCE = Work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`in_flight` callers add side by side, `batch` jobs a call; or a worker empties the queue."""

    name: str
    act: Act
    jobs: int
    quick_jobs: int
    batch: int = 1
    in_flight: int = 1
    has_redis_py: bool = False
    work: Work = RUN_ONCE


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="add", act="add", jobs=10_000, quick_jobs=2_000),
        Scenario(
            name="add-concurrent", act="add", jobs=40_000, quick_jobs=10_000,
            in_flight=100, has_redis_py=True,
        ),
        Scenario(name="add-bulk-50", act="add", jobs=100_000, quick_jobs=30_000, batch=50),
        Scenario(
            name="add-bulk-50x8", act="add", jobs=100_000, quick_jobs=40_000,
            batch=50, in_flight=8,
        ),
        Scenario(name="add-bulk-1000", act="add", jobs=200_000, quick_jobs=40_000, batch=1_000),
        Scenario(name="consume-100", act="consume", jobs=100_000, quick_jobs=20_000),
        Scenario(
            name="consume-100-events", act="consume", jobs=30_000, quick_jobs=6_000,
            work=Work(has_events=True),
        ),
        Scenario(
            name="consume-100-history", act="consume", jobs=100_000, quick_jobs=20_000,
            work=Work(has_history=True),
        ),
        Scenario(
            name="consume-results", act="consume", jobs=30_000, quick_jobs=6_000,
            work=Work(result="done"),
        ),
        Scenario(
            name="delayed-end-to-end", act="consume", jobs=50_000, quick_jobs=10_000,
            work=Work(delay_ms=1),
        ),
        Scenario(
            name="retry-throughput", act="consume", jobs=20_000, quick_jobs=3_000,
            work=Work(fails_once=True),
        ),
    )
}  # fmt: skip


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that one measuring process needs to know; peers read it as JSON."""

    act: Act
    jobs: int
    batch: int
    in_flight: int
    url: str
    loop: LoopKind
    # Where the recorded commands are, or go when `is_recording`.
    tape: str
    wait_s: int
    work: Work = RUN_ONCE
    is_recording: bool = False
    concurrency: int = CONCURRENCY
    queue: str = QUEUE
    stream: str = STREAM
    job_name: str = JOB_NAME
    payload: dict[str, str] = msgspec.field(default_factory=lambda: PAYLOAD)

    @property
    def calls_per_caller(self) -> int:
        return max(1, self.jobs // (self.batch * self.in_flight))


def wait_s(jobs: int) -> int:
    """When a measurement of so many jobs counts as stuck."""
    return _WAIT_S_MIN + jobs // _JOBS_PER_S_MIN


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measured."""

    jobs: int
    seconds: float
    cpu_seconds: float
    version: str
    loop: LoopKind

    @property
    def jobs_per_s(self) -> float:
        return self.jobs / self.seconds

    @property
    def cpu_us_per_job(self) -> float:
        return self.cpu_seconds / self.jobs * 1e6
