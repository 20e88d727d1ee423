"""Moves due jobs from the delayed set to the stream; one leader at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chasquimq.engine.loop import Ticker

if TYPE_CHECKING:
    from chasquimq.settings import UpkeepSettings
    from chasquimq.store.upkeep import UpkeepStore


class Promoter:
    """The lock only spares work: two promoters at once would still move each job once."""

    name = "promoter"

    def __init__(self, store: UpkeepStore, holder: str, settings: UpkeepSettings) -> None:
        self._store = store
        self._holder = holder
        self._settings = settings
        self._ticker = Ticker()
        self._renewed_s = 0.0
        self.is_leader = False

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            if not await self.run_once():
                await self._ticker.pause(self._settings.poll_ms)

    async def run_once(self) -> bool:
        """Promote a page, if we lead; True: more is due already."""
        settings = self._settings
        if not await self._lead():
            return False
        promoted = await self._store.promote(settings.promote_max)
        return promoted.is_full

    async def _lead(self) -> bool:
        """Take or keep the lock; a fresh one need not be asked for again while draining."""
        now_s = time.monotonic()
        if self.is_leader and now_s - self._renewed_s < self._settings.lock_ttl_s / 10:
            return True
        self.is_leader = await self._store.acquire_promoter_lock(
            self._holder, self._settings.lock_ttl_s
        )
        self._renewed_s = now_s
        return self.is_leader

    async def release(self) -> None:
        """Let another lead at once."""
        if self.is_leader:
            self.is_leader = False
            await self._store.release_promoter_lock(self._holder)
