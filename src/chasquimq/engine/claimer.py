"""Takes over what the dead left, on servers whose reads cannot claim."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chasquimq.store.arrivals import EMPTY

if TYPE_CHECKING:
    from chasquimq.store.arrivals import Batch
    from chasquimq.store.consuming import ConsumerStore

_LOOK_MS_MAX = 500
_QUIET_MS_MAX = 10_000


class Claimer:
    """Asked before every read, so that the dead's jobs get a free slot before new ones do.

    A busy worker asks twice a second. One that can be woken waits for as long as the last look,
    its own or another's, says that nothing can be claimed.
    """

    def __init__(self, store: ConsumerStore, lease_ms: int) -> None:
        self._store = store
        self._look_ms = min(lease_ms // 3, _LOOK_MS_MAX)
        # What is renewed in time is never silent for half a lease.
        self._quiet_ms = min(lease_ms // 2, _QUIET_MS_MAX)
        self._looked_s = float("-inf")
        self._wait_ms = 0
        self._is_hurried = False

    def hurry(self) -> None:
        """Look before the next read, whoever has looked just now."""
        self._is_hurried = True

    def block_ms(self, wanted_ms: int, *, is_idle: bool) -> int:
        """How long the next read may block without keeping the claimer waiting."""
        if self._store.abilities.claim_on_read:
            return wanted_ms
        return max(1, min(wanted_ms, int(self._due_in_ms(is_idle=is_idle))))

    async def claim(self, room: int, *, is_idle: bool) -> Batch:
        """What has been silent for a lease, if it is time to look."""
        if self._store.abilities.claim_on_read or self._due_in_ms(is_idle=is_idle) > 0:
            return EMPTY
        quiet_ms = 0 if self._is_hurried else self._quiet_ms
        batch, self._wait_ms = await self._store.claim(room, self._look_ms, quiet_ms)
        # A full batch says that more may be waiting.
        if batch.size < room:
            self._looked_s, self._is_hurried = time.monotonic(), False
        return batch

    def _due_in_ms(self, *, is_idle: bool) -> float:
        if self._is_hurried:
            return 0
        pause_ms = max(self._look_ms, self._wait_ms) if is_idle else self._look_ms
        return pause_ms - (time.monotonic() - self._looked_s) * 1000
