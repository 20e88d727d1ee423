"""Stands between the engine and a sink: what the sink raises ends here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from chasquimq.errors import SettingsError
from chasquimq.telemetry.pace import Pace
from chasquimq.telemetry.sink import BATCHES, HAPPENINGS, MetricsSink, is_inherited, listens

logger = logging.getLogger(__name__)
Tell = Callable[[Any], None]


class SafeSink(MetricsSink):
    """Passes every record on; a sink that raises is logged once, then ever less often.

    A sink that takes records singly loses only those it raised for.
    """

    def __init__(self, sink: MetricsSink, *, pace: Pace | None = None) -> None:
        if not isinstance(sink, MetricsSink):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
            raise SettingsError("metrics", sink, "a MetricsSink", hint="subclass it")
        self._sink = sink
        self._pace = pace or Pace()
        for happening in HAPPENINGS:
            # On the instance, so that a record costs one call and a no-op stays one.
            setattr(self, happening, self._guarded(happening))

    def _guarded(self, happening: str) -> Tell:
        method: Tell = getattr(self._sink, happening)
        if not listens(self._sink, happening):
            return method
        if happening in BATCHES and is_inherited(method, happening):
            return self._guard_each(getattr(self._sink, BATCHES[happening]), happening)
        return self._guard(method, happening)

    def _guard(self, tell: Tell, happening: str) -> Tell:
        def guarded(record: Any) -> None:
            try:
                tell(record)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - a sink's error, even a cancel, is never the job's
                self._note(happening, error)

        return guarded

    def _guard_each(self, tell: Tell, happening: str) -> Tell:
        guarded = self._guard(tell, happening)

        def guarded_batch(batch: Sequence[Any]) -> None:
            for record in batch:
                guarded(record)

        return guarded_batch

    def _note(self, happening: str, error: BaseException) -> None:
        if not self._pace.allows():
            return
        logger.warning(
            "a metrics sink raised, and its record was dropped",
            exc_info=error,
            extra={
                "sink": type(self._sink).__name__,
                "happening": happening,
                "untold": self._pace.take_held_back(),
            },
        )
