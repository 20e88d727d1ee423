"""Reports committed outcomes to a metrics sink, and once a second the health of the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from chasquimq.engine.listeners import Listener
from chasquimq.engine.supervisor import Ticker
from chasquimq.model.delivery import Burying, Completing, Delivery, Retrying, ready_ms
from chasquimq.telemetry.sink import (
    CompletedRuns,
    DlqRouted,
    GroupRecreated,
    JobOutcome,
    LeaseLost,
    OutcomeKind,
    ReaderBatch,
    RetryScheduled,
    RowsDropped,
    StaleOutcomes,
    WorkerHealth,
    listens,
)

if TYPE_CHECKING:
    from chasquimq.telemetry.sink import MetricsSink

Move = Delivery | Completing | Retrying | Burying
# The error of a child process that ended before it answered.
_CHILD_DIED = "ChildDied"
_METERED = (
    "job_outcomes", "retries_scheduled", "dlqs_routed", "stale_outcomes", "reader_batch",
    "lease_lost",
)  # fmt: skip


class MetricsListener(Listener):
    """Each call of a handler gives one JobOutcome, whatever became of the job; no call, none."""

    def __init__(self, sink: MetricsSink, at_ms: Callable[[int], float]) -> None:
        self._sink = sink
        self._at_ms = at_ms

    @staticmethod
    def is_used_by(sink: MetricsSink) -> bool:
        """Whether the sink takes any record that is made here."""
        return any(listens(sink, name) for name in _METERED)

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        self._sink.job_outcomes(CompletedRuns(deliveries, self._offset_us()))

    def retried(self, moves: Sequence[Retrying]) -> None:
        self._report_runs(moves)
        self._sink.retries_scheduled(
            [RetryScheduled(move.spent + 1, move.after_ms, move.delivery.name) for move in moves]
        )

    def buried(self, moves: Sequence[Burying]) -> None:
        self._report_runs(moves)
        self._sink.dlqs_routed(
            [
                DlqRouted(move.reason, move.attempt if move.was_run else 0, move.entry.name)
                for move in moves
            ]
        )

    def disputed(self, moves: Sequence[Move], *, is_unproven: bool) -> None:
        self._report_runs(moves)
        count = len(moves)
        self._sink.stale_outcomes(
            StaleOutcomes(0, count) if is_unproven else StaleOutcomes(count, 0)
        )

    def read(self, size: int, reclaimed: int) -> None:
        self._sink.reader_batch(ReaderBatch(size, reclaimed))

    def lease_lost(self) -> None:
        self._sink.lease_lost(LeaseLost(1))

    def _report_runs(self, moves: Sequence[Move]) -> None:
        offset_us = self._offset_us()
        outcomes = [
            _outcome(_kind(move), run, offset_us)
            for move in moves
            if (run := _run_of(move)) is not None
        ]
        if outcomes:
            self._sink.job_outcomes(outcomes)

    def _offset_us(self) -> int:
        """The server's clock minus our monotonic one: asked once a batch, not once a job."""
        return int(self._at_ms(0) * 1000)


def _outcome(kind: OutcomeKind, delivery: Delivery, offset_us: int) -> JobOutcome:
    # Clocks may disagree; a wait below nothing becomes 0 in the record.
    wait_us = delivery.started_ns // 1000 + offset_us - ready_ms(delivery) * 1000
    return JobOutcome(kind, delivery.run_number, delivery.duration_us, delivery.name, wait_us)


def _kind(move: Move) -> OutcomeKind:
    if isinstance(move, Delivery | Completing):
        return "ok"
    if isinstance(move, Retrying) and move.is_snooze:
        return "snoozed"
    is_dead_child = move.failure is not None and move.failure.error_type == _CHILD_DIED
    return "panic" if is_dead_child else "err"


def _run_of(move: Move) -> Delivery | None:
    """The delivery whose handler was called; None where none was."""
    entry = move if isinstance(move, Delivery) else move.entry
    return entry if isinstance(entry, Delivery) and entry.started_ns else None


# Fields of RowsDropped, each with a count of what was lost since the start.
Channel = Literal["events", "history", "events_unproven"]
Loss = tuple[Channel, Callable[[], int]]
_PAUSE_MS = 1_000
_REPORTED = ("worker_health", "rows_dropped", "group_recreated")


class HealthReporter:
    """Reports the health of a worker once a second, at no cost on the path of a job."""

    name = "health-reporter"

    def __init__(
        self,
        sink: MetricsSink,
        health: Callable[[], WorkerHealth],
        losses: Sequence[Loss],
        regroups: Callable[[], int] = int,
    ) -> None:
        """`regroups` answers how often the consumer group was made again since the start."""
        self._sink = sink
        self._health = health
        self._losses = losses
        self._regroups = regroups
        self._regroups_reported = 0
        self._reported: Counter[Channel] = Counter()
        self._ticker = Ticker()

    @staticmethod
    def is_used_by(sink: MetricsSink) -> bool:
        """Whether the sink takes any record that is made here."""
        return any(listens(sink, name) for name in _REPORTED)

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            self.run_once()
            await self._ticker.pause(_PAUSE_MS)

    def run_once(self) -> None:
        """Report how things are, and what was dropped or made again since the last time."""
        self._sink.worker_health(self._health())
        self._report_regroups()
        lost: Counter[Channel] = Counter()
        for channel, count in self._losses:
            lost[channel] += count()
        fresh, self._reported = lost - self._reported, lost
        if fresh:
            self._sink.rows_dropped(
                RowsDropped(fresh["events"], fresh["history"], fresh["events_unproven"])
            )

    def _report_regroups(self) -> None:
        count = self._regroups()
        if count > self._regroups_reported:
            self._sink.group_recreated(GroupRecreated(count - self._regroups_reported))
            self._regroups_reported = count
