"""Takes over what the dead left, on servers whose reads cannot claim."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chasquimq.store.arrivals import EMPTY

if TYPE_CHECKING:
    from chasquimq.store.arrivals import Batch
    from chasquimq.store.consuming import ConsumerStore

_PAUSE_MS_MAX = 500


class Claimer:
    """Asked before every read, so that the dead's jobs get a free slot before new ones do."""

    def __init__(self, store: ConsumerStore, lease_ms: int) -> None:
        self._store = store
        self._pause_s = min(lease_ms / 3, _PAUSE_MS_MAX) / 1000
        self._due_s = 0.0

    def block_ms(self, wanted_ms: int) -> int:
        """How long the next read may block without keeping the claimer waiting."""
        if self._store.abilities.claim_on_read:
            return wanted_ms
        return max(1, min(wanted_ms, int((self._due_s - time.monotonic()) * 1000)))

    async def claim(self, room: int) -> Batch:
        """What has been silent for a lease, if it is time to look."""
        if self._store.abilities.claim_on_read or time.monotonic() < self._due_s:
            return EMPTY
        batch = await self._store.claim(room)
        # A full batch says that more may be waiting.
        if batch.size < room:
            self._due_s = time.monotonic() + self._pause_s
        return batch
