"""Keeps this worker's idea of the server's time true, since clocks drift apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.engine.loop import Ticker

if TYPE_CHECKING:
    from chasquimq.store.consuming import ConsumerStore

_PAUSE_MS = 60_000


class Timekeeper:
    """Asks once a minute."""

    name = "timekeeper"

    def __init__(self, store: ConsumerStore) -> None:
        self._store = store
        self._ticker = Ticker()

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self._ticker.pause(_PAUSE_MS)
            if not self._ticker.is_stopped:
                await self.run_once()

    async def run_once(self) -> None:
        await self._store.learn_time()
