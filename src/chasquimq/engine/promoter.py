"""Moves due jobs from the delayed set to the stream; one leader at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.engine.leadership import Leadership
from chasquimq.engine.loop import Ticker
from chasquimq.telemetry.sink import PromoterTick

if TYPE_CHECKING:
    from chasquimq.settings import UpkeepSettings
    from chasquimq.store.upkeep import UpkeepStore
    from chasquimq.telemetry.sink import MetricsSink


class Promoter:
    """Two promoters at once would still move each job once."""

    name = "promoter"

    def __init__(
        self,
        store: UpkeepStore,
        holder: str,
        settings: UpkeepSettings,
        sink: MetricsSink | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._sink = sink
        self._ticker = Ticker()
        self._leadership = Leadership("promoter", store, holder, settings.lock_ttl_s, sink)

    @property
    def is_leader(self) -> bool:
        return self._leadership.is_held

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            if not await self.run_once():
                await self._ticker.pause(self._settings.poll_ms)

    async def run_once(self) -> bool:
        """Promote a page, if we lead; True: more is due already."""
        if not await self._leadership.hold():
            return False
        promoted = await self._store.promote(self._settings.promote_max)
        if self._sink is not None:
            self._sink.promoter_tick(
                PromoterTick(promoted.moved, promoted.depth, promoted.oldest_lag_ms)
            )
        return promoted.is_full

    async def release(self) -> None:
        """Let another lead at once."""
        await self._leadership.release()
