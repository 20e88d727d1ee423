"""Notices when something that should be quick takes a large part of the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from chasquimq.errors import SettingsError
from chasquimq.model.log import Pace, get_logger
from chasquimq.telemetry.sink import (
    BATCHES,
    HAPPENINGS,
    MetricsSink,
    is_inherited,
    is_noop,
    listens,
)

_WINDOW_NS = 1_000_000_000
_SPENT_NS_MAX = 200_000_000


class Burden:
    """A fifth of each second may be spent; one long call and many short ones weigh the same."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._spent_ns = 0

    def is_too_much(self, began_ns: int, ended_ns: int) -> bool:
        """Add a stretch of time; True: too much was spent, and counting starts again."""
        if began_ns - self._since_ns > _WINDOW_NS:
            self._since_ns, self._spent_ns = began_ns, 0
        self._spent_ns += ended_ns - began_ns
        if self._spent_ns <= _SPENT_NS_MAX:
            return False
        self._since_ns, self._spent_ns = ended_ns, 0
        return True


logger = get_logger(__name__)
Tell = Callable[[Any], None]


def both_sinks(sink: MetricsSink | None, other: MetricsSink) -> MetricsSink | None:
    """One sink for what `sink`, which is safe, and another one are to hear; None: nobody listens."""
    safe = safe_sink(other)
    if sink is None or safe is None:
        return safe or sink
    return CompositeSink([sink, safe])


def safe_sink(sink: MetricsSink | None) -> SafeSink | None:
    """The sink behind a guard; None for one that listens to nothing, which so costs nothing."""
    guarded = None if sink is None else SafeSink(sink)
    return None if is_noop(sink) else guarded


class CompositeSink(MetricsSink):
    """Passes every record to each of several sinks that listens to it, one after the other.

    Make each of them safe: what one raises keeps the record from those behind it.
    """

    def __init__(self, sinks: Sequence[MetricsSink]) -> None:
        for happening in HAPPENINGS:
            methods = [getattr(one, happening) for one in sinks if listens(one, happening)]
            if methods:
                # On the instance, so that what nobody listens to stays a no-op.
                setattr(self, happening, methods[0] if len(methods) == 1 else _to_all(methods))


class SafeSink(MetricsSink):
    """Passes every record on; a sink that raises, or is slow, is logged once, then ever less often.

    A sink that takes records singly loses only those it raised for.
    """

    def __init__(self, sink: MetricsSink, *, pace: Pace | None = None) -> None:
        # Callers lie.
        if not isinstance(sink, MetricsSink):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError("metrics", sink, "a MetricsSink", hint="subclass it")
        self._sink = sink
        self._raise_pace = pace or Pace()
        self._slow_pace = Pace()
        self._burden = Burden()
        for happening in HAPPENINGS:
            # On the instance, so that a no-op stays one.
            setattr(self, happening, self._guarded(happening))

    def _guarded(self, happening: str) -> Tell:
        method: Tell = getattr(self._sink, happening)
        if not listens(self._sink, happening):
            return method
        if happening in BATCHES and is_inherited(method, happening):
            single: Tell = getattr(self._sink, BATCHES[happening])
            return self._timed(_for_each(self._guard(single, happening)), happening)
        return self._timed(self._guard(method, happening), happening)

    def _guard(self, tell: Tell, happening: str) -> Tell:
        def guarded(record: Any) -> None:
            try:
                tell(record)
            except (KeyboardInterrupt, SystemExit):
                raise
            # A sink's error, even a cancel, is never the job's.
            except BaseException as error:  # noqa: BLE001
                self._note_error(happening, error)

        return guarded

    def _timed(self, tell: Tell, happening: str) -> Tell:
        now_ns, burden = time.monotonic_ns, self._burden

        def timed(record: Any) -> None:
            began_ns = now_ns()
            tell(record)
            if burden.is_too_much(began_ns, now_ns()):
                self._note_slowness(happening)

        return timed

    def _note_error(self, happening: str, error: BaseException) -> None:
        if self._raise_pace.allows():
            logger.warning(
                "the metrics sink %s raised in %s, and its record was dropped%s",
                self._sink_name, happening, self._raise_pace.held_back_text(),
                exc_info=error, extra=self._about(happening),
            )  # fmt: skip

    def _note_slowness(self, happening: str) -> None:
        if self._slow_pace.allows():
            logger.warning(
                "the metrics sink %s takes more than a fifth of the worker's time in %s%s",
                self._sink_name, happening, self._slow_pace.held_back_text(),
                extra=self._about(happening),
            )  # fmt: skip

    @property
    def _sink_name(self) -> str:
        return type(self._sink).__name__

    def _about(self, happening: str) -> dict[str, Any]:
        return {"sink": self._sink_name, "happening": happening}


def _to_all(methods: Sequence[Tell]) -> Tell:
    def tell_all(record: Any) -> None:
        for method in methods:
            method(record)

    return tell_all


def _for_each(tell: Tell) -> Tell:
    def tell_each(batch: Sequence[Any]) -> None:
        for record in batch:
            tell(record)

    return tell_each
