"""Passes committed outcomes on to listeners, in batches; what one of them raises harms no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from chasquimq.model.delivery import describe
from chasquimq.model.log import LogThrottle, get_logger

if TYPE_CHECKING:
    from chasquimq.model.delivery import Burying, Delivery, Retrying

logger = get_logger(__name__)
Hear = Callable[..., None]
_HAPPENINGS = (
    "started", "completed", "retried", "buried", "lease_lost", "drained", "read", "disputed",
)  # fmt: skip


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
        """The server refused: another outcome came first, or our first send may have done it."""


class CompositeListener(Listener):
    """Tells several listeners, one after the other; what one of them raises harms nobody else."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._hearers = {one: _hearers(listeners, one) for one in _HAPPENINGS}
        # One for each listener and kind of error.
        self._throttles: defaultdict[tuple[str, str], LogThrottle] = defaultdict(LogThrottle)

    def started(self, delivery: Delivery) -> None:
        self._tell("started", delivery)

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        self._tell("completed", deliveries)

    def retried(self, moves: Sequence[Retrying]) -> None:
        self._tell("retried", moves)

    def buried(self, moves: Sequence[Burying]) -> None:
        self._tell("buried", moves)

    def drained(self) -> None:
        self._tell("drained")

    def read(self, size: int, reclaimed: int) -> None:
        self._tell("read", size, reclaimed)

    def lease_lost(self) -> None:
        self._tell("lease_lost")

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        self._tell("disputed", moves, is_unproven=is_unproven)

    def _tell(self, happening: str, *about: Any, **more: Any) -> None:
        for hear in self._hearers[happening]:
            try:
                hear(*about, **more)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - the job is done, whatever its listeners do
                self._note(hear, error)

    def _note(self, hear: Hear, error: BaseException) -> None:
        name = hear.__qualname__
        throttle = self._throttles[name, describe(error).error_type]
        if throttle.allows():
            logger.error(
                "the listener %s raised and missed some jobs%s",
                name, throttle.held_back_text(), exc_info=error, extra={"listener": name},
            )  # fmt: skip


def combine(listeners: Sequence[Listener]) -> Listener | None:
    """What the engine talks to; None when nobody listens, so that it costs nothing."""
    return CompositeListener(listeners) if listeners else None


def _hearers(listeners: Sequence[Listener], happening: str) -> tuple[Hear, ...]:
    """The methods of those who do not leave it at doing nothing."""
    nothing = getattr(Listener, happening)
    hearing = [one for one in listeners if getattr(type(one), happening) is not nothing]
    return tuple([getattr(one, happening) for one in hearing])
