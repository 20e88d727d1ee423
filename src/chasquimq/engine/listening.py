"""Who hears of outcomes: told in batches, after the state change committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery
    from chasquimq.model.outcome import Burying, Retrying


class Listener:
    """Does nothing; override what you want to hear."""

    def started(self, delivery: Delivery) -> None:
        """A handler began and waits for something; one that never waits is not told of."""

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        """These are done and gone."""

    def retried(self, moves: Sequence[Retrying]) -> None:
        """These failed or snoozed, and wait in the delayed set."""

    def buried(self, moves: Sequence[Burying]) -> None:
        """These lie in the DLQ."""

    def lease_lost(self) -> None:
        """A job that is held here may run elsewhere now."""

    def drained(self) -> None:
        """A read came back empty after one that did not."""

    def read(self, size: int, reclaimed: int) -> None:
        """A read brought so many entries, some of them delivered before."""

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        """The door was shut: somebody was first, or our first send may have done it."""


class Chorus(Listener):
    """Tells several listeners, one after the other."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)

    def started(self, delivery: Delivery) -> None:
        for listener in self._listeners:
            listener.started(delivery)

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        for listener in self._listeners:
            listener.completed(deliveries)

    def retried(self, moves: Sequence[Retrying]) -> None:
        for listener in self._listeners:
            listener.retried(moves)

    def buried(self, moves: Sequence[Burying]) -> None:
        for listener in self._listeners:
            listener.buried(moves)

    def drained(self) -> None:
        for listener in self._listeners:
            listener.drained()

    def read(self, size: int, reclaimed: int) -> None:
        for listener in self._listeners:
            listener.read(size, reclaimed)

    def lease_lost(self) -> None:
        for listener in self._listeners:
            listener.lease_lost()

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        for listener in self._listeners:
            listener.disputed(moves, is_unproven=is_unproven)


def one_of(listeners: Sequence[Listener]) -> Listener | None:
    """What the engine talks to; None when nobody listens, so that it costs nothing."""
    if not listeners:
        return None
    return listeners[0] if len(listeners) == 1 else Chorus(listeners)
