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

    All is told a tick later, in its order: by then the next ack has left, and the server has
    something to do while events are spelled.
    """

    def __init__(self, store: EventStore, *, tells_starts: bool) -> None:
        self._store = store
        self._tells_starts = tells_starts
        self._starting: list[Delivery] = []
        self._throttle = LogThrottle()
        self._soon = asyncio.get_running_loop().call_soon

    def started(self, delivery: Delivery) -> None:
        if not self._tells_starts:
            return
        if not self._starting:
            self._soon(self._tell_starts)
        self._starting.append(delivery)
        delivery.is_announced = True

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        self._soon(self._tell, self._store.completed, deliveries, self._untold(deliveries))

    def retried(self, moves: Sequence[Retrying]) -> None:
        untold = self._untold([move.delivery for move in moves])
        self._soon(self._tell, self._store.retried, moves, untold)

    def buried(self, moves: Sequence[Burying]) -> None:
        entries = [move.entry for move in moves if isinstance(move.entry, Delivery)]
        self._soon(self._tell, self._store.buried, moves, self._untold(entries))

    def drained(self) -> None:
        if self._tells_starts:
            self._soon(self._tell, self._store.drained)

    def _untold(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        if not self._tells_starts:
            return []
        return [one for one in deliveries if one.started_ns and not one.is_announced]

    def _tell_starts(self) -> None:
        starting, self._starting = self._starting, []
        self._tell(self._store.started, starting)

    def _tell(self, write: Callable[..., None], *about: object) -> None:
        """Nobody hears what a callback of the event loop raises, and no job waits for events."""
        try:
            write(*about)
        except Exception:
            if self._throttle.allows():
                logger.exception("events could not be written, and are left out")
