"""Tells a sink how the worker is doing and what was given up: each second, beside the jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from chasquimq.engine.loop import Ticker
from chasquimq.telemetry.sink import RowsDropped, WorkerHealth, listens

if TYPE_CHECKING:
    from chasquimq.telemetry.sink import MetricsSink

Channel = Literal["events", "history"]
_PAUSE_MS = 1_000


class Dropping(Protocol):
    """A writer that gives rows up rather than let a job wait, and counts them."""

    @property
    def dropped_count(self) -> int: ...


class Reporter:
    """Asks, so that nothing on the path of a job has to tell."""

    name = "reporter"

    def __init__(
        self,
        sink: MetricsSink,
        health: Callable[[], WorkerHealth],
        writers: Sequence[tuple[Channel, Dropping]],
    ) -> None:
        self._sink = sink
        self._health = health
        self._writers = writers
        self._told: dict[Channel, int] = {"events": 0, "history": 0}
        self._ticker = Ticker()

    @staticmethod
    def is_heard_by(sink: MetricsSink) -> bool:
        """Whether the sink listens to anything that is told here."""
        return listens(sink, "worker_health") or listens(sink, "rows_dropped")

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            self.run_once()
            await self._ticker.pause(_PAUSE_MS)

    def run_once(self) -> None:
        """Tell how things are, and what was dropped since the last time."""
        self._sink.worker_health(self._health())
        events, history = self._fresh("events"), self._fresh("history")
        if events or history:
            self._sink.rows_dropped(RowsDropped(events, history))

    def _fresh(self, channel: Channel) -> int:
        dropped = sum(writer.dropped_count for name, writer in self._writers if name == channel)
        fresh, self._told[channel] = dropped - self._told[channel], dropped
        return fresh
