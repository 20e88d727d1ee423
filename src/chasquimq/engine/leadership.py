"""Who does the work that one is enough for: takes the lock, keeps it, and tells when it changes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from chasquimq.telemetry.sink import LockOutcome, LockRole

if TYPE_CHECKING:
    from chasquimq.telemetry.sink import MetricsSink

# A lock this fresh need not be asked for again.
_FRESH_SHARE = 0.1


class Lock(Protocol):
    """A lock of one role on the server."""

    async def acquire_lock(self, holder: str, ttl_s: int) -> bool: ...

    async def release_lock(self, holder: str) -> bool: ...


class Leadership:
    """The lock only spares work: nothing goes wrong while two believe to lead."""

    def __init__(
        self, role: LockRole, lock: Lock, holder: str, ttl_s: int, sink: MetricsSink | None
    ) -> None:
        self.is_held = False
        self._role: LockRole = role
        self._lock = lock
        self._holder = holder
        self._ttl_s = ttl_s
        self._sink = sink
        self._renewed_s = 0.0
        self._expiry: asyncio.TimerHandle | None = None

    async def hold(self) -> bool:
        """Take or keep the lock; False: somebody else leads."""
        asked_s = time.monotonic()
        if self.is_held and asked_s - self._renewed_s < self._ttl_s * _FRESH_SHARE:
            return True
        self._note(await self._lock.acquire_lock(self._holder, self._ttl_s))
        self._renewed_s = asked_s
        self._expect_expiry()
        return self.is_held

    async def release(self) -> None:
        """Let another lead at once."""
        if not self.is_held:
            return
        # Held until the server says otherwise: after a broken link the next try must ask again.
        await self._lock.release_lock(self._holder)
        self._note(False)
        self._expect_expiry()

    def _expect_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None
        if self.is_held:
            # A call waits as long as the server is away, and others lead meanwhile.
            left_s = self._renewed_s + self._ttl_s - time.monotonic()
            self._expiry = asyncio.get_running_loop().call_later(left_s, self._note, False)

    def _note(self, is_held: bool) -> None:
        is_changed, self.is_held = is_held != self.is_held, is_held
        if is_changed and self._sink is not None:
            self._sink.lock_outcome(LockOutcome(self._role, is_held))
