"""The loops that keep a queue moving without running any job, and the one that watches its DLQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.engine.dlq_alarm import DlqAlarm
from chasquimq.engine.janitor import Janitor
from chasquimq.engine.promoter import Promoter
from chasquimq.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from chasquimq.engine.loop import Loop
    from chasquimq.settings import UpkeepSettings
    from chasquimq.store.firing import FiringStore
    from chasquimq.store.janitor import JanitorStore
    from chasquimq.store.upkeep import UpkeepStore
    from chasquimq.telemetry.sink import MetricsSink


class UpkeepLoops:
    """What a worker does on the side, and an Upkeep as its only work."""

    def __init__(
        self,
        upkeep: UpkeepStore,
        firing: FiringStore,
        janitor: JanitorStore,
        holder: str,
        settings: UpkeepSettings,
        sink: MetricsSink | None = None,
    ) -> None:
        self.promoter = Promoter(upkeep, holder, settings, sink)
        self.scheduler = Scheduler(
            firing, settings, holder=settings.scheduler_holder, specs_max=settings.fire_max,
            sink=sink,
        )  # fmt: skip
        self.janitor = Janitor(janitor, settings.janitor_ms)
        self._store = upkeep
        self.dlq_alarm = DlqAlarm(upkeep, settings.dlq_len_max or 0)
        self._settings = settings

    @property
    def loops(self) -> list[Loop]:
        """Those that are switched on; sweeping belongs to promotion."""
        loops: list[Loop] = []
        if self._settings.delayed_enabled:
            loops += (self.promoter, self.janitor)
        if self._settings.run_scheduler:
            loops.append(self.scheduler)
        if self._settings.dlq_len_max is not None:
            loops.append(self.dlq_alarm)
        return loops

    def stop(self) -> None:
        for loop in (self.promoter, self.janitor, self.scheduler, self.dlq_alarm):
            loop.stop()

    def heed_idleness(self, can_be_woken: Callable[[], bool]) -> None:
        """Try for a lock less often while this process is one that a leaving leader wakes."""
        self.promoter.leadership.can_be_woken = can_be_woken
        self.scheduler.leadership.can_be_woken = can_be_woken

    def nudge(self) -> None:
        """Somebody who led has left."""
        self.promoter.nudge()
        self.scheduler.nudge()

    async def release(self) -> None:
        """Let others lead at once."""
        await self.promoter.release()
        await self.scheduler.release()

    async def close(self) -> None:
        """Close what only these loops use."""
        await self.promoter.close()
        await self._store.close()
