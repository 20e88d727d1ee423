"""Sends lines to an events stream without waiting, and counts those that may not be in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from chasquimq.errors import ConnectionLost
from chasquimq.model.delivery import Delivery
from chasquimq.model.log import LogThrottle, get_logger
from chasquimq.store.producer.writes import AddMark
from chasquimq.wire.events import EventEncoder
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.new_job import wall_ms

if TYPE_CHECKING:
    from chasquimq.model.delivery import Burying, Retrying
    from chasquimq.model.job_options import Wait
    from chasquimq.store.net.connection import Reply
    from chasquimq.store.net.reconnect import ReconnectingConnection
    from chasquimq.wire.new_job import NewJob

# Beyond this the server is behind with events, and more of them would only delay the jobs.
_UNANSWERED_MAX = 20_000
# So many events may stand beyond the cap for each writer.
_LINES_PER_TRIM = 1_000


class EventLines:
    """The way of one writer to one stream; a call never waits and never raises.

    `dropped_count` counts lines that are not in the stream. Those whose reply was lost may be:
    they are in `unproven_count` alone. `on_drop` gets each loss, with its size.
    """

    def __init__(
        self,
        connection: ReconnectingConnection,
        trim: bytes,
        on_drop: Callable[[int], None] | None = None,
    ) -> None:
        self._connection = connection
        self._trim = trim
        self._on_drop = on_drop
        self._unanswered = 0
        # An earlier worker may have left the stream longer than we keep it.
        self._untrimmed = _LINES_PER_TRIM
        self.dropped_count = 0
        self.unproven_count = 0

    def send(self, lines: list[bytes]) -> None:
        connection = self._connection.current
        if not lines:
            return
        if connection is None or self._unanswered > _UNANSWERED_MAX:
            self._drop(len(lines))
            return
        count = len(lines)
        self._unanswered += count
        self._untrimmed += count
        if self._untrimmed >= _LINES_PER_TRIM:
            lines.append(self._trim)
            self._untrimmed = 0
        answer = connection.send(b"".join(lines), len(lines))
        answer.add_done_callback(lambda done: self._answered(count, done))

    def _answered(self, count: int, answer: asyncio.Future[list[Reply]]) -> None:
        self._unanswered -= count
        if answer.cancelled():
            self.unproven_count += count
        elif (error := answer.exception()) is not None:
            self._lost(count, error)
        else:
            # An event that was written is answered by its id.
            self._drop(count - list(map(type, answer.result())).count(bytes))

    def _lost(self, count: int, error: BaseException) -> None:
        if isinstance(error, ConnectionLost) and error.outcome == "not_done":
            self._drop(count)
        else:
            self.unproven_count += count

    def _drop(self, count: int) -> None:
        if not count:
            return
        self.dropped_count += count
        if self._on_drop is not None:
            self._on_drop(count)


class EventStore:
    """The events of one worker; a call never waits and never raises."""

    def __init__(
        self, queue: str, worker: str, max_len: int, connection: ReconnectingConnection
    ) -> None:
        self._encoder = EventEncoder(QueueKeys(queue).events, max_len, worker)
        self._lines = EventLines(connection, self._encoder.trim)

    @property
    def dropped_count(self) -> int:
        """Events that are not in the stream."""
        return self._lines.dropped_count

    @property
    def unproven_count(self) -> int:
        """Events whose reply was lost, so that it is not known whether they are in the stream."""
        return self._lines.unproven_count

    def started(self, deliveries: Sequence[Delivery]) -> None:
        """Handlers that are running now."""
        self._lines.send(self._encoder.actives(deliveries, wall_offset_ns()))

    def completed(self, deliveries: Sequence[Delivery], unannounced: Sequence[Delivery]) -> None:
        """Jobs that are done; the start of those in `unannounced` was not announced yet."""
        starts = self._encoder.actives(unannounced, wall_offset_ns())
        self._lines.send(starts + self._encoder.completions(deliveries, wall_ms()))

    def retried(self, moves: Sequence[Retrying], unannounced: Sequence[Delivery]) -> None:
        """Attempts that failed and will be run again, and those that only wait."""
        now_ms, encoder = wall_ms(), self._encoder
        lines = encoder.actives(unannounced, wall_offset_ns())
        for move in moves:
            if move.failure is not None and not move.is_snooze:
                lines.append(encoder.failed(move.delivery, move.failure, now_ms))
            lines.append(encoder.retry_scheduled(move, now_ms))
        self._lines.send(lines)

    def buried(self, moves: Sequence[Burying], unannounced: Sequence[Delivery]) -> None:
        """Entries that went to the DLQ, and the failures that sent them there."""
        now_ms, encoder = wall_ms(), self._encoder
        lines = encoder.actives(unannounced, wall_offset_ns())
        for move in moves:
            # Only deliveries are run.
            if move.was_run and move.failure is not None and isinstance(move.entry, Delivery):
                lines.append(encoder.failed(move.entry, move.failure, now_ms))
            lines.append(encoder.dlq(move, now_ms))
        self._lines.send(lines)

    def drained(self) -> None:
        self._lines.send([self._encoder.drained(wall_ms())])


logger = get_logger(__name__)


class DelayEvents:
    """The `delayed` events of one producer; those of a loop tick leave in one write."""

    def __init__(self, queue: str, max_len: int, connection: ReconnectingConnection) -> None:
        self._queue = queue
        self._encoder = EventEncoder(QueueKeys(queue).events, max_len, worker="")
        self._lines = EventLines(connection, self._encoder.trim, on_drop=self._report_drop)
        self._gathered: list[bytes] = []
        self._log_throttle = LogThrottle()

    @property
    def dropped_count(self) -> int:
        """Events that are not in the stream."""
        return self._lines.dropped_count

    @property
    def unproven_count(self) -> int:
        """Events whose reply was lost, so that it is not known whether they are in the stream."""
        return self._lines.unproven_count

    def added(self, jobs: Sequence[NewJob], marks: Sequence[AddMark]) -> None:
        """A write was confirmed; jobs that were there before, or were due at once, have no event."""
        now_ms, delayed = wall_ms(), self._encoder.delayed
        lines = [
            delayed(job.job_id, job.name, now_ms, *_wait(job.wait, now_ms))
            for job, mark in zip(jobs, marks, strict=True)
            if mark is AddMark.ADDED and job.wait is not None and _is_ahead(job.wait, now_ms)
        ]
        if lines and not self._gathered:
            asyncio.get_running_loop().call_soon(self.flush)
        self._gathered += lines

    def flush(self) -> None:
        """Send what was gathered in this tick."""
        lines, self._gathered = self._gathered, []
        self._lines.send(lines)

    def _report_drop(self, count: int) -> None:
        # A producer has no sink that could show the count.
        if self._log_throttle.allows():
            logger.warning(
                "%d events of delayed adds to queue %s were dropped; the jobs were added%s",
                count, self._queue, self._log_throttle.held_back_text(),
                extra={"queue": self._queue, "count": count},
            )  # fmt: skip


def _is_ahead(wait: Wait, now_ms: int) -> bool:
    return not wait.is_absolute or wait.ms > now_ms


def _wait(wait: Wait, now_ms: int) -> tuple[int, int | None]:
    """How long, and until when: a wait for so long gets its due time from the server's clock."""
    return (wait.ms - now_ms, wait.ms) if wait.is_absolute else (wait.ms, None)


def wall_offset_ns() -> int:
    """The time of day minus the monotonic clock."""
    return time.time_ns() - time.monotonic_ns()
