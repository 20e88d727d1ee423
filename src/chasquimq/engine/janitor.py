"""Sweeps up what accidents leave behind: ghosts, empty consumers, index entries of jobs gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.engine.loop import Ticker
from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from chasquimq.store.janitor import JanitorStore

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
                "%d pending jobs had been deleted by somebody", ghosts, extra={"count": ghosts}
            )
        self.reaped_count += await self._store.reap_consumers(_IDLE_MS_MIN)
        await self._store.sweep_index()
