"""Publishes events of committed outcomes; no job waits for them, none comes before the fact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from chasquimq.engine.listeners import Listener
from chasquimq.model.delivery import Delivery
from chasquimq.model.log import LogThrottle, get_logger

if TYPE_CHECKING:
    from chasquimq.model.delivery import Burying, Retrying
    from chasquimq.store.events import EventStore

logger = get_logger(__name__)


class EventPublisher(Listener):
    """Writes `active` for handlers that wait at once, for the others along with their end.

    Events are written a tick later, in their order: by then the next ack has left, and the server
    has something to do while they are encoded.
    """

    def __init__(self, store: EventStore, subject: str, *, has_starts: bool) -> None:
        """`subject` is whose events these are, as the log says it."""
        self._store = store
        self._subject = subject
        self._has_starts = has_starts
        self._starting: list[Delivery] = []
        self._throttle = LogThrottle()
        self._soon = asyncio.get_running_loop().call_soon

    def started(self, delivery: Delivery) -> None:
        if not self._has_starts:
            return
        if not self._starting:
            self._soon(self._write_starts)
        self._starting.append(delivery)
        delivery.is_announced = True

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        self._soon(self._write, self._store.completed, deliveries, self._not_announced(deliveries))

    def retried(self, moves: Sequence[Retrying]) -> None:
        starts = self._not_announced([move.delivery for move in moves])
        self._soon(self._write, self._store.retried, moves, starts)

    def buried(self, moves: Sequence[Burying]) -> None:
        entries = [move.entry for move in moves if isinstance(move.entry, Delivery)]
        self._soon(self._write, self._store.buried, moves, self._not_announced(entries))

    def drained(self) -> None:
        if self._has_starts:
            self._soon(self._write, self._store.drained)

    def _not_announced(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        if not self._has_starts:
            return []
        return [one for one in deliveries if one.started_ns and not one.is_announced]

    def _write_starts(self) -> None:
        starting, self._starting = self._starting, []
        self._write(self._store.started, starting)

    def _write(self, write: Callable[..., None], *about: object) -> None:
        """A callback of the event loop has no caller to raise to, and no job waits for events."""
        try:
            write(*about)
        except Exception:
            if self._throttle.allows():
                logger.exception(
                    "events of %s could not be written, and are left out", self._subject
                )
