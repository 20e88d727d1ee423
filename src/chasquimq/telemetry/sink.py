"""The port of metrics: a sink that may listen to any happening, and the records it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from chasquimq.telemetry.records import (
    U32_MAX,
    U64_MAX,
    CompletedRuns,
    DlqRouted,
    GroupRecreated,
    JobOutcome,
    LeaseLost,
    LockOutcome,
    LockRole,
    OutcomeKind,
    PromoterTick,
    ReaderBatch,
    Record,
    RetryScheduled,
    RowsDropped,
    StaleOutcomes,
    WorkerHealth,
    saturate,
)

__all__ = [
    "BATCHES",
    "HAPPENINGS",
    "U32_MAX",
    "U64_MAX",
    "CompletedRuns",
    "DlqRouted",
    "GroupRecreated",
    "JobOutcome",
    "LeaseLost",
    "LockOutcome",
    "LockRole",
    "MetricsSink",
    "NoopSink",
    "OutcomeKind",
    "PromoterTick",
    "ReaderBatch",
    "Record",
    "RetryScheduled",
    "RowsDropped",
    "StaleOutcomes",
    "WorkerHealth",
    "is_inherited",
    "is_noop",
    "listens",
    "saturate",
]


class MetricsSink:
    """Override what you want to hear of; the rest is let go, and so is what later versions add.

    Methods are called on the event loop, between jobs: count and return. What is raised here
    harms no job. Records of jobs come in batches; a sink that does not care is given them singly.
    A batch is valid during the call, and may make its records as they are looked at: keep
    `list(batch)`, or it keeps the jobs and their payloads.
    """

    def promoter_tick(self, tick: PromoterTick) -> None: ...

    def lock_outcome(self, outcome: LockOutcome) -> None: ...

    def reader_batch(self, batch: ReaderBatch) -> None: ...

    def job_outcome(self, outcome: JobOutcome) -> None: ...

    def job_outcomes(self, batch: Sequence[JobOutcome]) -> None:
        for outcome in batch:
            self.job_outcome(outcome)

    def retry_scheduled(self, retry: RetryScheduled) -> None: ...

    def retries_scheduled(self, batch: Sequence[RetryScheduled]) -> None:
        for retry in batch:
            self.retry_scheduled(retry)

    def dlq_routed(self, burial: DlqRouted) -> None: ...

    def dlqs_routed(self, batch: Sequence[DlqRouted]) -> None:
        for burial in batch:
            self.dlq_routed(burial)

    def lease_lost(self, loss: LeaseLost) -> None: ...

    def stale_outcomes(self, outcomes: StaleOutcomes) -> None: ...

    def rows_dropped(self, rows: RowsDropped) -> None: ...

    def group_recreated(self, group: GroupRecreated) -> None: ...

    def worker_health(self, health: WorkerHealth) -> None: ...


class NoopSink(MetricsSink):
    """Listens to nothing; a worker that has it makes no records at all."""


# Methods that take a batch, and the ones that take its records.
BATCHES: Mapping[str, str] = MappingProxyType(
    {
        "job_outcomes": "job_outcome",
        "retries_scheduled": "retry_scheduled",
        "dlqs_routed": "dlq_routed",
    }
)
HAPPENINGS = tuple(name for name in vars(MetricsSink) if not name.startswith("_"))


def is_noop(sink: MetricsSink | None) -> bool:
    """Whether no record would reach anybody, so that none need be made."""
    return sink is None or not any(listens(sink, happening) for happening in HAPPENINGS)


def listens(sink: MetricsSink, happening: str) -> bool:
    """Whether this method of the sink, or of what it wraps, does anything."""
    if not is_inherited(getattr(sink, happening), happening):
        return True
    return happening in BATCHES and listens(sink, BATCHES[happening])


def is_inherited(method: Any, happening: str) -> bool:
    """Whether a sink left this method as it came."""
    return getattr(method, "__func__", None) is getattr(MetricsSink, happening)
