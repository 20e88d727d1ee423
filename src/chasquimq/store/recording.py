"""Tells the events stream what became of jobs: after the fact, and waited for by nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.model.delivery import Delivery
from chasquimq.store.event_lines import EventLines
from chasquimq.store.wall_clock import wall_ms, wall_offset_ns
from chasquimq.wire.event_command import EventSpeller
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.model.outcome import Burying, Retrying
    from chasquimq.store.link import Link


class EventStore:
    """The events of one worker; a call never waits and never raises."""

    def __init__(self, queue: str, worker: str, max_len: int, link: Link) -> None:
        self._spell = EventSpeller(QueueKeys(queue).events, max_len, worker)
        self._lines = EventLines(link, self._spell.trim)

    @property
    def dropped_count(self) -> int:
        """Events that are not in the stream."""
        return self._lines.dropped_count

    @property
    def unproven_count(self) -> int:
        """Events whose reply was lost, so that nobody knows whether they are in the stream."""
        return self._lines.unproven_count

    def started(self, deliveries: Sequence[Delivery]) -> None:
        """Handlers that are running now."""
        self._lines.send(self._spell.actives(deliveries, wall_offset_ns()))

    def completed(self, deliveries: Sequence[Delivery], untold: Sequence[Delivery]) -> None:
        """Jobs that are done; the start of those in `untold` was not announced yet."""
        starts = self._spell.actives(untold, wall_offset_ns())
        self._lines.send(starts + self._spell.completions(deliveries, wall_ms()))

    def retried(self, moves: Sequence[Retrying], untold: Sequence[Delivery]) -> None:
        """Attempts that failed and will be run again, and those that only wait."""
        now_ms, spell = wall_ms(), self._spell
        lines = spell.actives(untold, wall_offset_ns())
        for move in moves:
            if move.failure is not None and not move.is_snooze:
                lines.append(spell.failed(move.delivery, move.failure, now_ms))
            lines.append(spell.retry_scheduled(move, now_ms))
        self._lines.send(lines)

    def buried(self, moves: Sequence[Burying], untold: Sequence[Delivery]) -> None:
        """Entries that went to the DLQ, and the failures that sent them there."""
        now_ms, spell = wall_ms(), self._spell
        lines = spell.actives(untold, wall_offset_ns())
        for move in moves:
            # Only deliveries are run.
            if move.was_run and move.failure is not None and isinstance(move.entry, Delivery):
                lines.append(spell.failed(move.entry, move.failure, now_ms))
            lines.append(spell.dlq(move, now_ms))
        self._lines.send(lines)

    def drained(self) -> None:
        self._lines.send([self._spell.drained(wall_ms())])
