"""The port of metrics: one record a happening, and a sink that may listen to any of them.

Records describe runs of handlers, not jobs added. A run gives one `JobOutcome`; one that fails
gives a `RetryScheduled` or a `DlqRouted` too, once the server confirmed it. What no handler ever
saw gives no `JobOutcome`, and when it is buried a `DlqRouted` with attempt 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from chasquimq.model.reason import DlqReason

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

LockRole = Literal["promoter", "scheduler"]
OutcomeKind = Literal["ok", "err", "panic", "snoozed"]


def saturate(number: int, ceiling: int = U64_MAX) -> int:
    """The number, moved into the range of an unsigned integer: clocks may disagree."""
    return min(max(number, 0), ceiling)


class _Counts(msgspec.Struct, frozen=True, gc=False):
    """A record of plain counts, none of which is below zero or above 64 bits."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            number = getattr(self, field)
            if not 0 <= number <= U64_MAX:
                force_setattr(self, field, saturate(number))


class PromoterTick(_Counts, frozen=True, gc=False):
    """A leader looked at the delayed set.

    `depth` is what stays there after `promoted` jobs left. `oldest_pending_lag_ms` is how late the
    first of them is: 0 unless one that is due was left behind.
    """

    promoted: int
    depth: int
    oldest_pending_lag_ms: int


class LockOutcome(msgspec.Struct, frozen=True, gc=False):
    """A leader's lock changed hands, seen from this process; staying is not told."""

    role: LockRole
    is_acquired: bool


class ReaderBatch(_Counts, frozen=True, gc=False):
    """A read that brought something: `size` entries as they came, the broken ones too.

    `reclaimed` of them had been delivered before, to a worker that died or went silent.
    """

    size: int
    reclaimed: int


class JobOutcome(msgspec.Struct, frozen=True, gc=False):
    """A handler ran: it returned, it raised, or the process it ran in died ("panic").

    One that asked to come back, by `RetryLater`, has neither completed nor failed: "snoozed".
    `attempt` counts from 1. The duration is wall-clock time, waiting included. `wait_us` runs from
    the moment the job was ready until its start; None where nobody knows. An empty name stays one.
    """

    kind: OutcomeKind
    attempt: int
    handler_duration_us: int
    name: str = ""
    wait_us: int | None = None

    def __post_init__(self) -> None:
        # Spelled out and not looped over: this is the one record made for every job.
        wait_us = self.wait_us
        if wait_us is not None and not 0 <= wait_us <= U64_MAX:
            force_setattr(self, "wait_us", saturate(wait_us))
        if not 0 <= self.handler_duration_us <= U64_MAX:
            force_setattr(self, "handler_duration_us", saturate(self.handler_duration_us))
        if not 0 <= self.attempt <= U32_MAX:
            force_setattr(self, "attempt", saturate(self.attempt, U32_MAX))


class RetryScheduled(msgspec.Struct, frozen=True, gc=False):
    """A job waits for its next run; `attempt` is the number that run will have.

    It failed, it asked to come back, or nobody here has a handler of its name.
    """

    attempt: int
    backoff_ms: int
    name: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "attempt", saturate(self.attempt, U32_MAX))
        force_setattr(self, "backoff_ms", saturate(self.backoff_ms))


class DlqRouted(msgspec.Struct, frozen=True, gc=False):
    """A job lies in the DLQ; `attempt` is the run that gave up, 0 where no handler saw it."""

    reason: DlqReason
    attempt: int
    name: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "attempt", saturate(self.attempt, U32_MAX))


class LeaseLost(_Counts, frozen=True, gc=False):
    """Others may run `count` jobs that are held or running here."""

    count: int


class StaleOutcomes(_Counts, frozen=True, gc=False):
    """Outcomes that changed nothing.

    `stale`: another outcome of the job came first. `unproven`: the link broke, and whether ours
    was the first cannot be told any more.
    """

    stale: int
    unproven: int


class RowsDropped(_Counts, frozen=True, gc=False):
    """Lines of the events stream and rows of the history that were given up, not written.

    `events_unproven` counts other lines: the link broke before their reply, so that nobody can
    tell whether they were written.
    """

    events: int
    history: int
    events_unproven: int = 0


class WorkerHealth(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How a worker is doing at one moment; `loops_down` counts loops that keep failing."""

    is_consuming: bool
    has_trusted_leases: bool
    loops_down: int = 0
    waiting: int = 0
    running: int = 0
    unconfirmed: int = 0
    last_read_age_ms: int = 0
    lease_beat_age_ms: int = 0


Record = (
    PromoterTick
    | LockOutcome
    | ReaderBatch
    | JobOutcome
    | RetryScheduled
    | DlqRouted
    | LeaseLost
    | StaleOutcomes
    | RowsDropped
    | WorkerHealth
)


class MetricsSink:
    """Override what you want to hear of; the rest is let go, and so is what later versions add.

    Methods are called on the event loop, between jobs: count and return. What is raised here
    harms no job. Records of jobs come in batches; a sink that does not care is given them singly.
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
