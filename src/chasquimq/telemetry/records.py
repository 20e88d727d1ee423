"""Defines the records that metrics sinks receive, all of them immutable values.

Records describe runs of handlers, not jobs added. A run gives one `JobOutcome`; one that fails
also gives a `RetryScheduled` or a `DlqRouted`, once the server confirmed it. A job that no handler
saw gives no `JobOutcome`; when it is buried, it gives a `DlqRouted` with attempt 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, overload

import msgspec
from msgspec.structs import force_setattr

from chasquimq.model.delivery import DlqReason, ready_times_ms

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

LockRole = Literal["promoter", "scheduler"]
OutcomeKind = Literal["ok", "err", "panic", "snoozed"]


# ── records ───────────────────────────────────────────────────────────────────────────────────────


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
    """A promoter has checked the delayed set.

    `depth` is what stays there after `promoted` jobs left. `oldest_pending_lag_ms` is how late the
    first of them is: 0 unless one that is due was left behind.
    """

    promoted: int
    depth: int
    oldest_pending_lag_ms: int


class LockOutcome(msgspec.Struct, frozen=True, gc=False):
    """This process acquired or lost a leader's lock; keeping it gives no record."""

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

    One that raised `RetryLater` has neither completed nor failed: "snoozed".
    `attempt` counts from 1. The duration is wall-clock time, waiting included. `wait_us` runs from
    the moment the job was ready until its start; None where it is not known.
    """

    kind: OutcomeKind
    attempt: int
    handler_duration_us: int
    name: str = ""
    wait_us: int | None = None

    def __post_init__(self) -> None:
        # Written out and not looped over: this is the one record made for every job.
        wait_us = self.wait_us
        if wait_us is not None and not 0 <= wait_us <= U64_MAX:
            force_setattr(self, "wait_us", saturate(wait_us))
        if not 0 <= self.handler_duration_us <= U64_MAX:
            force_setattr(self, "handler_duration_us", saturate(self.handler_duration_us))
        if not 0 <= self.attempt <= U32_MAX:
            force_setattr(self, "attempt", saturate(self.attempt, U32_MAX))


class RetryScheduled(msgspec.Struct, frozen=True, gc=False):
    """A job waits for its next run; `attempt` is the number that run will have.

    It failed, its handler raised `RetryLater`, or no handler has its name.
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

    `stale`: another outcome of the job came first. `unproven`: the connection broke, so it is not
    known whether ours was the first.
    """

    stale: int
    unproven: int


class RowsDropped(_Counts, frozen=True, gc=False):
    """Events and rows of the history that were dropped and not written.

    `events_unproven` counts other events: the connection broke before their reply, so it is not
    known whether they were written.
    """

    events: int
    history: int
    events_unproven: int = 0


class GroupRecreated(_Counts, frozen=True, gc=False):
    """The consumer group had been deleted and the worker created it again, `count` times."""

    count: int


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
    oldest_waiting_age_ms: int = 0
    is_stalled: bool = False


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
    | GroupRecreated
    | WorkerHealth
)


# ── many runs at once ─────────────────────────────────────────────────────────────────────────────


class CompletedRuns(Sequence[JobOutcome]):
    """A batch of runs: a sequence of records, and the same as columns for sinks that count.

    It holds the deliveries themselves, so it should not outlive the call that it is given to.
    `offset_us` is the server's clock minus our monotonic one.
    """

    __slots__ = ("_deliveries", "_offset_us")

    def __init__(self, deliveries: Sequence[Delivery], offset_us: int) -> None:
        self._deliveries = deliveries
        self._offset_us = offset_us

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[JobOutcome]:
        runs = zip(self._deliveries, self.waits_us, strict=True)
        for one, wait_us in runs:
            yield JobOutcome("ok", one.run_number, one.duration_us, one.name, wait_us)

    @overload
    def __getitem__(self, at: int) -> JobOutcome: ...
    @overload
    def __getitem__(self, at: slice) -> list[JobOutcome]: ...
    def __getitem__(self, at: int | slice) -> JobOutcome | list[JobOutcome]:
        if isinstance(at, slice):
            return list(CompletedRuns(self._deliveries[at], self._offset_us))
        (run,) = CompletedRuns([self._deliveries[at]], self._offset_us)
        return run

    @property
    def names(self) -> list[str]:
        return [one.name for one in self._deliveries]

    @property
    def durations_us(self) -> list[int]:
        return [one.duration_us for one in self._deliveries]

    @property
    def waits_us(self) -> list[int]:
        offset_us, deliveries = self._offset_us, self._deliveries
        pairs = zip(deliveries, ready_times_ms(deliveries), strict=True)
        waits_us = [one.started_ns // 1_000 + offset_us - ms * 1_000 for one, ms in pairs]
        # Clocks may disagree; a wait is never negative.
        if waits_us and min(waits_us) < 0:
            return [max(0, wait_us) for wait_us in waits_us]
        return waits_us


class RunColumns:
    """Columns of many batches, kept until they are added up."""

    __slots__ = ("_durations_us", "_names", "_waits_us")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._durations_us: list[int] = []
        self._waits_us: list[int] = []

    def __len__(self) -> int:
        return len(self._names)

    def add(self, runs: CompletedRuns) -> None:
        self._names += runs.names
        self._durations_us += runs.durations_us
        self._waits_us += runs.waits_us

    def by_name(self) -> Iterator[tuple[str, list[int], list[int]]]:
        """Each name with the durations and the waits of its runs."""
        if len(set(self._names)) == 1:
            yield self._names[0], self._durations_us, self._waits_us
            return
        groups: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        columns = zip(self._names, self._durations_us, self._waits_us, strict=True)
        for name, duration_us, wait_us in columns:
            durations_us, waits_us = groups[name]
            durations_us.append(duration_us)
            waits_us.append(wait_us)
        for name, (durations_us, waits_us) in groups.items():
            yield name, durations_us, waits_us
