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
_Method = Callable[..., None]
_METHODS = (
    "started", "completed", "retried", "buried", "lease_lost", "drained", "read", "disputed",
)  # fmt: skip


class Listener:
    """Does nothing; override the methods that you need."""

    def started(self, delivery: Delivery) -> None:
        """A handler began and waits for something; one that never waits is not reported."""

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
    """Calls several listeners, one after the other; what one of them raises harms no other."""

    def __init__(self, listeners: Sequence[Listener], subject: str) -> None:
        self._subject = subject
        self._methods = {name: _overridden(listeners, name) for name in _METHODS}
        # One for each listener and kind of error.
        self._throttles: defaultdict[tuple[str, str], LogThrottle] = defaultdict(LogThrottle)

    def started(self, delivery: Delivery) -> None:
        self._call("started", delivery)

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        self._call("completed", deliveries)

    def retried(self, moves: Sequence[Retrying]) -> None:
        self._call("retried", moves)

    def buried(self, moves: Sequence[Burying]) -> None:
        self._call("buried", moves)

    def drained(self) -> None:
        self._call("drained")

    def read(self, size: int, reclaimed: int) -> None:
        self._call("read", size, reclaimed)

    def lease_lost(self) -> None:
        self._call("lease_lost")

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        self._call("disputed", moves, is_unproven=is_unproven)

    def _call(self, name: str, *about: Any, **more: Any) -> None:
        for method in self._methods[name]:
            try:
                method(*about, **more)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - the job is done, whatever its listeners do
                self._note(method, error)

    def _note(self, method: _Method, error: BaseException) -> None:
        name = method.__qualname__
        throttle = self._throttles[name, describe(error).error_type]
        if throttle.allows():
            logger.error(
                "the listener %s of %s raised and missed some jobs%s",
                name, self._subject, throttle.held_back_text(), exc_info=error, extra={"listener": name},
            )  # fmt: skip


def combine(listeners: Sequence[Listener], subject: str) -> Listener | None:
    """What the engine calls; None where there is no listener, so that it costs nothing.

    `subject` is whose listeners these are, as the log says it.
    """
    return CompositeListener(listeners, subject) if listeners else None


def _overridden(listeners: Sequence[Listener], name: str) -> tuple[_Method, ...]:
    """The methods of this name that do anything."""
    nothing = getattr(Listener, name)
    overriding = [one for one in listeners if getattr(type(one), name) is not nothing]
    return tuple([getattr(one, name) for one in overriding])
