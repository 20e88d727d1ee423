"""Writes what happened: events that nobody waits for, and counts those that were lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.wire.event_command import EventSpeller
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    import asyncio

    from chasquimq.model.delivery import Delivery
    from chasquimq.model.outcome import Burying, Retrying
    from chasquimq.store.connection import Reply
    from chasquimq.store.link import Link

# Beyond this the server is behind with events, and more of them would only delay the jobs.
_UNANSWERED_MAX = 20_000
# So many events may stand beyond the cap for each writer.
_LINES_PER_TRIM = 1_000


class EventStore:
    """The events of one worker; a call never waits and never raises."""

    def __init__(self, queue: str, worker: str, max_len: int, link: Link) -> None:
        self._spell = EventSpeller(QueueKeys(queue).events, max_len, worker)
        self._link = link
        self._unanswered = 0
        # Whoever was here before may have left the stream longer than we keep it.
        self._untrimmed = _LINES_PER_TRIM
        self.dropped_count = 0

    def started(self, deliveries: Sequence[Delivery]) -> None:
        """Handlers that are running now."""
        offset_ms = _wall_offset_ms()
        active = self._spell.active
        self._send([active(one, _at_ms(one.started_ns, offset_ms)) for one in deliveries])

    def completed(self, deliveries: Sequence[Delivery], untold: Sequence[Delivery]) -> None:
        """Jobs that are done; the start of those in `untold` was not announced yet."""
        offset_ms, now_ms = _wall_offset_ms(), _now_ms()
        active, completed = self._spell.active, self._spell.completed
        starts = [active(one, _at_ms(one.started_ns, offset_ms)) for one in untold]
        self._send(starts + [completed(one, now_ms) for one in deliveries])

    def retried(self, moves: Sequence[Retrying], untold: Sequence[Delivery]) -> None:
        """Attempts that failed and will be run again, and those that only wait."""
        offset_ms, now_ms, spell = _wall_offset_ms(), _now_ms(), self._spell
        lines = [spell.active(one, _at_ms(one.started_ns, offset_ms)) for one in untold]
        for move in moves:
            if move.failure is not None and not move.is_snooze:
                lines.append(spell.failed(move.delivery, move.failure, now_ms))
            lines.append(spell.retry_scheduled(move, now_ms))
        self._send(lines)

    def buried(self, moves: Sequence[Burying], untold: Sequence[Delivery]) -> None:
        """Entries that went to the DLQ, and the failures that sent them there."""
        offset_ms, now_ms, spell = _wall_offset_ms(), _now_ms(), self._spell
        lines = [spell.active(one, _at_ms(one.started_ns, offset_ms)) for one in untold]
        for move in moves:
            if move.was_run and move.failure is not None:
                lines.append(spell.failed(move.entry, move.failure, now_ms))  # pyright: ignore[reportArgumentType]  only deliveries run
            lines.append(spell.dlq(move, now_ms))
        self._send(lines)

    def drained(self) -> None:
        self._send([self._spell.drained(_now_ms())])

    def _send(self, lines: list[bytes]) -> None:
        connection = self._link.current
        if not lines:
            return
        if connection is None or self._unanswered > _UNANSWERED_MAX:
            self.dropped_count += len(lines)
            return
        count = len(lines)
        self._unanswered += count
        self._untrimmed += count
        if self._untrimmed >= _LINES_PER_TRIM:
            lines.append(self._spell.trim)
            self._untrimmed = 0
        answer = connection.send(b"".join(lines), len(lines))
        answer.add_done_callback(lambda done: self._answered(count, done))

    def _answered(self, count: int, answer: asyncio.Future[list[Reply]]) -> None:
        self._unanswered -= count
        if answer.cancelled() or answer.exception() is not None:
            self.dropped_count += count
            return
        # An event that was written is answered by its id.
        self.dropped_count += count - list(map(type, answer.result())).count(bytes)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _wall_offset_ms() -> float:
    return (time.time_ns() - time.monotonic_ns()) / 1_000_000


def _at_ms(monotonic_ns: int, offset_ms: float) -> int:
    return int(monotonic_ns / 1_000_000 + offset_ms)
