"""Sweeps up what accidents leave behind, ghosts and empty consumers; who leads promotion does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chasquimq.engine.loop import Ticker
from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from chasquimq.store.janitor import JanitorStore

logger = get_logger(__name__)
_IDLE_MS_MIN = 3_600_000


class Janitor:
    """Looks once a minute, if this worker leads."""

    name = "janitor"

    def __init__(self, store: JanitorStore, pause_ms: int, is_leader: Callable[[], bool]) -> None:
        self._store = store
        self._pause_ms = pause_ms
        self._is_leader = is_leader
        self._ticker = Ticker()
        self.ghost_count = 0
        self.reaped_count = 0

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self._ticker.pause(self._pause_ms)
            if self._is_leader() and not self._ticker.is_stopped:
                await self.run_once()

    async def run_once(self) -> None:
        """Forget ghosts, remove consumers that have held nothing for an hour."""
        ghosts = await self._store.sweep_ghosts()
        if ghosts:
            self.ghost_count += ghosts
            logger.warning("pending jobs had been deleted by somebody", extra={"count": ghosts})
        self.reaped_count += await self._store.reap_consumers(_IDLE_MS_MIN)
