"""Tells a sink how the worker is doing and what was given up: each second, beside the jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from chasquimq.engine.loop import Ticker
from chasquimq.telemetry.sink import GroupRecreated, RowsDropped, WorkerHealth, listens

if TYPE_CHECKING:
    from chasquimq.telemetry.sink import MetricsSink

# Fields of RowsDropped, each with somebody's count of what was lost since the start.
Channel = Literal["events", "history", "events_unproven"]
Loss = tuple[Channel, Callable[[], int]]
_PAUSE_MS = 1_000
_TOLD = ("worker_health", "rows_dropped", "group_recreated")


class Reporter:
    """Asks, so that nothing on the path of a job has to tell."""

    name = "reporter"

    def __init__(
        self,
        sink: MetricsSink,
        health: Callable[[], WorkerHealth],
        losses: Sequence[Loss],
        regroups: Callable[[], int] = int,
    ) -> None:
        """`regroups` answers how often the consumer group was made again since the start."""
        self._sink = sink
        self._health = health
        self._losses = losses
        self._regroups = regroups
        self._regroups_told = 0
        self._told: Counter[Channel] = Counter()
        self._ticker = Ticker()

    @staticmethod
    def is_heard_by(sink: MetricsSink) -> bool:
        """Whether the sink listens to anything that is told here."""
        return any(listens(sink, happening) for happening in _TOLD)

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            self.run_once()
            await self._ticker.pause(_PAUSE_MS)

    def run_once(self) -> None:
        """Tell how things are, and what was dropped or made again since the last time."""
        self._sink.worker_health(self._health())
        self._tell_regroups()
        lost: Counter[Channel] = Counter()
        for channel, count in self._losses:
            lost[channel] += count()
        fresh, self._told = lost - self._told, lost
        if fresh:
            self._sink.rows_dropped(
                RowsDropped(fresh["events"], fresh["history"], fresh["events_unproven"])
            )

    def _tell_regroups(self) -> None:
        count = self._regroups()
        if count > self._regroups_told:
            self._sink.group_recreated(GroupRecreated(count - self._regroups_told))
            self._regroups_told = count
