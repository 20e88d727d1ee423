"""Takes over what the dead left, on servers whose reads cannot claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.engine.loop import Ticker

if TYPE_CHECKING:
    from chasquimq.engine.holdings import Holdings
    from chasquimq.engine.reader import Intake
    from chasquimq.store.consuming import ConsumerStore

_PAUSE_MS_MAX = 500


class Claimer:
    """Looks for silent holders while there is a free slot."""

    name = "claimer"

    def __init__(
        self, store: ConsumerStore, holdings: Holdings, intake: Intake, lease_ms: int
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._intake = intake
        self._pause_ms = min(lease_ms / 3, _PAUSE_MS_MAX)
        self._ticker = Ticker()

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self.run_once()
            await self._ticker.pause(self._pause_ms)

    async def run_once(self) -> None:
        """Claim until nothing is left or no slot is free."""
        while not self._store.abilities.claim_on_read:
            room = self._holdings.room_for_claims()
            if room <= 0 or self._ticker.is_stopped:
                return
            batch = await self._store.claim(room)
            self._intake.take(batch)
            if batch.size < room:
                return
