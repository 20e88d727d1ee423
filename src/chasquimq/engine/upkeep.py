"""Runs what keeps a queue moving beside its jobs: promotion, firing, sweeping, and the DLQ alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.engine.promoter import Promoter
from chasquimq.engine.scheduler import RepeatableScheduler
from chasquimq.engine.supervisor import Ticker
from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from chasquimq.engine.supervisor import Loop
    from chasquimq.settings import UpkeepSettings
    from chasquimq.store.repeatables import FiringStore
    from chasquimq.store.upkeep import JanitorStore, UpkeepStore
    from chasquimq.telemetry.sink import MetricsSink

logger = get_logger(__name__)
_IDLE_MS_MIN = 3_600_000


class Janitor:
    """Looks once a minute, one worker of the fleet at a time, whoever leads promotion."""

    name = "janitor"

    def __init__(self, store: JanitorStore, pause_ms: int) -> None:
        self._store = store
        self._pause_ms = pause_ms
        self._ticker = Ticker()
        self.ghost_count = 0
        self.reaped_count = 0

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self._ticker.pause(self._pause_ms)
            if not self._ticker.is_stopped and await self._store.take_turn(self._pause_ms):
                await self.run_once()

    async def run_once(self) -> None:
        """Forget ghosts and stale index entries, remove consumers idle for an hour."""
        ghosts = await self._store.sweep_ghosts()
        if ghosts:
            self.ghost_count += ghosts
            logger.warning(
                "%d pending jobs had been deleted from the stream by another program",
                ghosts,
                extra={"count": ghosts},
            )
        self.reaped_count += await self._store.reap_consumers(_IDLE_MS_MIN)
        await self._store.sweep_index()


PAUSE_MS = 10_000


class DlqAlarm:
    """Warns once, and again only after the DLQ had been short enough in between."""

    name = "dlq-alarm"

    def __init__(self, store: UpkeepStore, len_max: int, pause_ms: int = PAUSE_MS) -> None:
        self._store = store
        self._len_max = len_max
        self._pause_ms = pause_ms
        self._ticker = Ticker()
        self.is_ringing = False

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self.run_once()
            await self._ticker.pause(self._pause_ms)

    async def run_once(self) -> None:
        """Look, and warn if the DLQ has become too long since the last look."""
        dead = await self._store.dlq_len()
        was_ringing, self.is_ringing = self.is_ringing, dead > self._len_max
        if self.is_ringing and not was_ringing:
            logger.warning(
                "%d jobs are in the DLQ, more than dlq_max_stream_len (%d)",
                dead,
                self._len_max,
                extra={"dead": dead, "dlq_max_stream_len": self._len_max},
            )


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
        self.scheduler = RepeatableScheduler(
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
