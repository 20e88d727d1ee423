"""Tells the events stream what became of jobs: after the fact, and waited for by nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.model.delivery import Delivery
from chasquimq.store.event_lines import EventLines
from chasquimq.store.wall_clock import wall_ms
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
        offset_ms = _wall_offset_ms()
        active = self._spell.active
        self._lines.send([active(one, _at_ms(one.started_ns, offset_ms)) for one in deliveries])

    def completed(self, deliveries: Sequence[Delivery], untold: Sequence[Delivery]) -> None:
        """Jobs that are done; the start of those in `untold` was not announced yet."""
        offset_ms, now_ms = _wall_offset_ms(), wall_ms()
        active, completed = self._spell.active, self._spell.completed
        starts = [active(one, _at_ms(one.started_ns, offset_ms)) for one in untold]
        self._lines.send(starts + [completed(one, now_ms) for one in deliveries])

    def retried(self, moves: Sequence[Retrying], untold: Sequence[Delivery]) -> None:
        """Attempts that failed and will be run again, and those that only wait."""
        offset_ms, now_ms, spell = _wall_offset_ms(), wall_ms(), self._spell
        lines = [spell.active(one, _at_ms(one.started_ns, offset_ms)) for one in untold]
        for move in moves:
            if move.failure is not None and not move.is_snooze:
                lines.append(spell.failed(move.delivery, move.failure, now_ms))
            lines.append(spell.retry_scheduled(move, now_ms))
        self._lines.send(lines)

    def buried(self, moves: Sequence[Burying], untold: Sequence[Delivery]) -> None:
        """Entries that went to the DLQ, and the failures that sent them there."""
        offset_ms, now_ms, spell = _wall_offset_ms(), wall_ms(), self._spell
        lines = [spell.active(one, _at_ms(one.started_ns, offset_ms)) for one in untold]
        for move in moves:
            # Only deliveries are run.
            if move.was_run and move.failure is not None and isinstance(move.entry, Delivery):
                lines.append(spell.failed(move.entry, move.failure, now_ms))
            lines.append(spell.dlq(move, now_ms))
        self._lines.send(lines)

    def drained(self) -> None:
        self._lines.send([self._spell.drained(wall_ms())])


def _wall_offset_ms() -> float:
    return (time.time_ns() - time.monotonic_ns()) / 1_000_000


def _at_ms(monotonic_ns: int, offset_ms: float) -> int:
    return int(monotonic_ns / 1_000_000 + offset_ms)
