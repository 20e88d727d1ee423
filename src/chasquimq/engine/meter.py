"""Committed outcomes → metrics, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from chasquimq.engine.listening import Listener
from chasquimq.model.delivery import Delivery
from chasquimq.model.outcome import Burying, Retrying
from chasquimq.model.verdict import ready_ms
from chasquimq.telemetry.sink import (
    DlqRouted,
    JobOutcome,
    LeaseLost,
    OutcomeKind,
    ReaderBatch,
    RetryScheduled,
    StaleOutcomes,
)

if TYPE_CHECKING:
    from chasquimq.telemetry.sink import MetricsSink

# The error of a child process that ended before it answered.
_CHILD_DIED = "ChildDied"


class Meter(Listener):
    """Each run of a handler gives one JobOutcome, whatever became of the job."""

    def __init__(self, sink: MetricsSink, at_ms: Callable[[int], float]) -> None:
        self._sink = sink
        self._at_ms = at_ms

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        record = self._outcome
        self._sink.job_outcomes([record("ok", delivery) for delivery in deliveries])

    def retried(self, moves: Sequence[Retrying]) -> None:
        self._sink.job_outcomes([self._outcome(_kind(move), move.delivery) for move in moves])
        self._sink.retries_scheduled(
            [RetryScheduled(move.spent + 1, move.after_ms, move.delivery.name) for move in moves]
        )

    def buried(self, moves: Sequence[Burying]) -> None:
        self._sink.job_outcomes(
            [
                self._outcome(_kind(move), move.entry)
                for move in moves
                if move.failure is not None and isinstance(move.entry, Delivery)
            ]
        )
        self._sink.dlqs_routed(
            [
                DlqRouted(move.reason, move.attempt if move.failure else 0, move.entry.name)
                for move in moves
            ]
        )

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        for move in moves:
            delivery = move if isinstance(move, Delivery) else _delivery_of(move)
            if isinstance(delivery, Delivery):
                self._sink.job_outcomes([self._outcome(_kind(move), delivery)])
        count = len(moves)
        self._sink.stale_outcomes(
            StaleOutcomes(0, count) if is_unproven else StaleOutcomes(count, 0)
        )

    def read(self, size: int, reclaimed: int) -> None:
        self._sink.reader_batch(ReaderBatch(size, reclaimed))

    def lease_lost(self) -> None:
        self._sink.lease_lost(LeaseLost(1))

    def _outcome(self, kind: OutcomeKind, delivery: Delivery) -> JobOutcome:
        wait_us = int((self._at_ms(delivery.started_ns) - ready_ms(delivery)) * 1000)
        return JobOutcome(
            kind, delivery.run_number, delivery.duration_us, delivery.name, max(0, wait_us)
        )


def _kind(move: Any) -> OutcomeKind:
    if not isinstance(move, Retrying | Burying):
        return "ok"
    is_dead_child = move.failure is not None and move.failure.error_type == _CHILD_DIED
    return "panic" if is_dead_child else "err"


def _delivery_of(move: Any) -> Any:
    return move.entry if isinstance(move, Burying) else move.delivery
