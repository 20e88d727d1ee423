"""Decides who does the work that one is enough for: takes the lock, keeps it, reports changes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from chasquimq.telemetry.sink import LockOutcome, LockRole

if TYPE_CHECKING:
    from chasquimq.store.upkeep import Lead
    from chasquimq.telemetry.sink import MetricsSink

# A lock is renewed when half of its time is over.
_FRESH_SHARE = 0.5
# When a follower tries after the lock could have run out: later than a late renewal, and not all
# at once.
_GRACE_MS_MIN, _GRACE_MS_MAX = 400, 700
# How often one tries that nobody can wake when the leader leaves.
_BUSY_TRY_MS = 1_000


class Lock(Protocol):
    """A lock of one role on the server."""

    async def lead(self, holder: str, ttl_s: int) -> Lead: ...

    async def release_lock(self, holder: str) -> bool: ...


class Leadership:
    """The lock only spares work: nothing goes wrong while two believe to lead."""

    def __init__(
        self, role: LockRole, lock: Lock, holder: str, ttl_s: int, sink: MetricsSink | None
    ) -> None:
        self.is_held = False
        # Whether this process is told at once when the leader leaves.
        self.can_be_woken: Callable[[], bool] = lambda: False
        self._role: LockRole = role
        self._lock = lock
        self._holder = holder
        self._ttl_s = ttl_s
        self._sink = sink
        self._renewed_s = 0.0
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def renewal_in_ms(self) -> float:
        """When a lock that is held must be renewed; 0: now."""
        if not self.is_held:
            return 0
        passed_s = time.monotonic() - self._renewed_s
        return max(0.0, (self._ttl_s * _FRESH_SHARE - passed_s) * 1000)

    async def hold(self) -> Lead:
        """Take or keep the lock, and see what waits; `is_ours` False: somebody else leads."""
        asked_s = time.monotonic()
        lead = await self._lock.lead(self._holder, self._ttl_s)
        self._note(lead.is_ours)
        self._renewed_s = asked_s
        self._expect_expiry()
        return lead

    def retry_in_ms(self, lead: Lead) -> float:
        """How long one that does not lead waits before it tries again."""
        wait_ms = lead.free_in_ms + random.uniform(_GRACE_MS_MIN, _GRACE_MS_MAX)
        return wait_ms if self.can_be_woken() else min(wait_ms, _BUSY_TRY_MS)

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
