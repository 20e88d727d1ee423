"""One span for each run of a handler: open from its start until its outcome is known."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chasquimq.engine.listening import Listener

if TYPE_CHECKING:
    from chasquimq.engine.runner import Begin
    from chasquimq.model.delivery import Delivery
    from chasquimq.model.outcome import Burying, Retrying
    from chasquimq.model.verdict import Failure
    from chasquimq.telemetry.tracing import RunSpan, Tracing

_NOTHING: Mapping[str, str | int] = {}


class RunSpans(Listener):
    """Starts spans with the handlers of one worker, and ends them when it hears of outcomes.

    At most as many are open as the worker holds jobs.
    """

    def __init__(self, tracing: Tracing, queue: str, group: str, worker: str) -> None:
        self._tracing = tracing
        self._queue = queue
        self._about: dict[str, str | int] = {
            "messaging.consumer.group.name": group,
            "messaging.client.id": worker,
        }
        self._open: dict[bytes, tuple[RunSpan, Delivery]] = {}

    def around(self, begin: Begin) -> Begin:
        """The same start of a run, inside a span."""

        def begin_in_span(delivery: Delivery) -> tuple[Coroutine[Any, Any, Any], Any]:
            span = self._tracing.start_run(
                self._queue, delivery, delivery.extras or {}, self._about
            )
            self._open[delivery.entry_id] = span, delivery
            return begin(delivery)

        return begin_in_span

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._end(delivery.entry_id, "completed")

    def retried(self, moves: Sequence[Retrying]) -> None:
        for move in moves:
            outcome = "snoozed" if move.is_snooze else "retried"
            failure = None if move.is_snooze else move.failure
            self._end(move.entry_id, outcome, failure, {"chasquimq.job.backoff_ms": move.after_ms})

    def buried(self, moves: Sequence[Burying]) -> None:
        for move in moves:
            self._end(
                move.entry_id, "dead", move.failure, {"chasquimq.job.reason": str(move.reason)}
            )

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        for move in moves:
            failure = getattr(move, "failure", None)
            self._end(move.entry_id, "unproven" if is_unproven else "stale", failure)

    def close(self) -> None:
        """End the spans of what was given back, or still runs in a thread."""
        for entry_id in list(self._open):
            self._end(entry_id, "interrupted")

    def _end(
        self,
        entry_id: bytes,
        outcome: str,
        failure: Failure | None = None,
        attributes: Mapping[str, str | int] = _NOTHING,
    ) -> None:
        found = self._open.pop(entry_id, None)
        if found is None or not found[1].started_ns:
            return  # nothing ran
        span, delivery = found
        span.end(
            outcome,
            duration_us=delivery.duration_us if delivery.is_finished else None,
            error=None if failure is None else (failure.error_type, failure.message),
            attributes=attributes,
        )
