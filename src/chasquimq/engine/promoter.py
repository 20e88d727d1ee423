"""Promotes delayed jobs that are due, while this process holds the lock that one leader has."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from chasquimq.engine.failure_log import first_of_minute
from chasquimq.engine.supervisor import Ticker
from chasquimq.errors import StoreError
from chasquimq.model.log import get_logger
from chasquimq.telemetry.sink import LockOutcome, LockRole, PromoterTick

if TYPE_CHECKING:
    from chasquimq.settings import UpkeepSettings
    from chasquimq.store.upkeep import Lead, Promoted, UpkeepStore
    from chasquimq.telemetry.sink import MetricsSink

logger = get_logger(__name__)
# A lock is renewed when half of its time is over.
_FRESH_SHARE = 0.5
# When a follower tries after the lock could have run out: later than a late renewal, and not all
# at once.
_GRACE_MS_MIN, _GRACE_MS_MAX = 400, 700
# How often a process tries that no other can wake when the leader leaves.
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
        # Whether this process is woken at once when the leader leaves.
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
        """Take or keep the lock, and see what waits; `is_ours` False: another process leads."""
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
        # Held until the server says otherwise: after a broken connection the next try must ask again.
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


# How long one BLPOP lasts, and how long a server that refused it is not asked again.
_LISTEN_MS, _REFUSED_S = 10_000, 5.0
# For how long the promoter looks at its old pace after it found a job that rang no bell.
_SILENT_S = 300.0


class Bell:
    """Waits on the server until a job is added that is due before all others."""

    def __init__(self, store: UpkeepStore, on_ring: Callable[[], None]) -> None:
        self._store = store
        self._on_ring = on_ring
        self._task: asyncio.Task[None] | None = None
        self._refused_until_s = 0.0
        # Whether a ring would be noticed now, and whether one was since the last look.
        self.is_awake = False
        self.has_rung = False

    def listen(self) -> None:
        """Go on listening, in the background."""
        is_listening = self._task is not None and not self._task.done()
        if not is_listening and time.monotonic() >= self._refused_until_s:
            self._task = asyncio.create_task(self._listen(), name="chasqui-bell")

    async def rest(self) -> None:
        """Stop listening, and close the connection."""
        task, self._task = self._task, None
        self.is_awake = False
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            await self._store.hang_up_bell()

    async def _listen(self) -> None:
        try:
            listening = await self._store.listen(_LISTEN_MS)
            self.is_awake = True
            has_rung = await listening
        except StoreError:
            # Not allowed, or not connected: the promoter looks more often instead, from now on.
            self.is_awake = False
            self._refused_until_s = time.monotonic() + _REFUSED_S
            self._on_ring()
            return
        if has_rung:
            self.has_rung = True
            self._on_ring()
        else:
            self.listen_again()

    def listen_again(self) -> None:
        """Listen again after a time without a ring."""
        self._task = None
        self.listen()


class UnreadableLog:
    """Logs delayed entries that cannot be read, which promotion buries; floods are summed up."""

    def __init__(self, queue: str, delayed_key: str) -> None:
        self._queue = queue
        self._delayed_key = delayed_key
        self._count = 0
        self._limit = first_of_minute(self._log_sum)

    def on_error(self, count_so_far: int) -> None:
        """Log what came since the last look."""
        count, self._count = count_so_far - self._count, count_so_far
        if count and self._limit.allows("malformed_delayed", count):
            self._log(f"{count:,} delayed entries", "cannot be read and are", "", count)

    def flush(self) -> None:
        """Log what is still to be summed up."""
        self._limit.flush()

    def _log_sum(self, count: int, when: str, _kinds: str) -> None:
        self._log(
            f"{count:,} more delayed entries", "could not be read and were", f" {when}", count
        )

    def _log(self, entries: str, fate: str, when: str, count: int) -> None:
        logger.warning(
            "%s of queue %s %s buried as malformed_delayed%s; `chasqui dlq peek %s` shows them, "
            "look for what else writes to the key %s",
            entries, self._queue, fate, when, self._queue, self._delayed_key,
            extra={"queue": self._queue, "reason": "malformed_delayed", "count": count},
        )  # fmt: skip


class Promoter:
    """Sleeps until the next job is due, or an earlier one is added.

    Two promoters at once would still move each job once.
    """

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
        self.leadership = Leadership("promoter", store, holder, settings.lock_ttl_s, sink)
        self._bell = Bell(store, self._ticker.nudge)
        self._unreadable = UnreadableLog(store.queue, store.delayed_key)
        # When the first job is due, as far as this promoter knows; ms of the server's clock.
        self._known_due_ms = float("inf")
        self._polls_until_s = 0.0

    @property
    def is_leader(self) -> bool:
        return self.leadership.is_held

    def stop(self) -> None:
        self._ticker.stop()

    def nudge(self) -> None:
        """Look now."""
        self._ticker.nudge()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            looked_s = time.monotonic()
            pause_ms = await self.run_once()
            if pause_ms > 0:
                await self._ticker.pause(pause_ms)
                await self._rest(looked_s)

    async def run_once(self) -> float:
        """Promote a page, if we lead and something is due; answers how long to pause, in ms."""
        if not self.leadership.renewal_in_ms:
            lead = await self.leadership.hold()
            if not lead.is_ours:
                await self._bell.rest()
                return self.leadership.retry_in_ms(lead)
            self._learn(lead.now_ms, lead.due_ms, 0)
            if lead.due_in_ms > 0:
                self._tick(0, lead)
                return self._pause_ms(lead.due_in_ms)
        promoted = await self._promote()
        self._learn(promoted.now_ms, promoted.due_ms, promoted.moved)
        self._tick(promoted.moved, promoted)
        return 0 if promoted.is_full else self._pause_ms(promoted.due_in_ms)

    async def _promote(self) -> Promoted:
        try:
            return await self._store.promote(self._settings.promote_max)
        finally:
            # What was buried is logged, too, where a later step of the promotion failed.
            self._unreadable.on_error(self._store.unreadable_count)

    async def release(self) -> None:
        """Let another lead at once."""
        await self.leadership.release()

    async def close(self) -> None:
        self._unreadable.flush()
        await self._bell.rest()

    @property
    def _rest_ms(self) -> float:
        # Many jobs that are due one after the other share a promotion.
        return self._settings.poll_ms / 2

    async def _rest(self, looked_s: float) -> None:
        """Look no more often than this, however often the bell rings."""
        rested_s = time.monotonic() - looked_s
        await asyncio.sleep(max(0.0, self._rest_ms / 1000 - rested_s))

    def _pause_ms(self, due_in_ms: float) -> float:
        self._bell.listen()
        is_polling = not self._bell.is_awake or time.monotonic() < self._polls_until_s
        limit_ms = self._settings.poll_ms if is_polling else self.leadership.renewal_in_ms
        # A timer may end a little early, and a look then finds nothing.
        return max(1.0, min(limit_ms, max(due_in_ms + 1, self._rest_ms)))

    def _learn(self, now_ms: int, due_ms: float, moved: int) -> None:
        first_ms = now_ms if moved else due_ms
        if first_ms < self._known_due_ms and not self._bell.has_rung and self._bell.is_awake:
            # It was added by a program that rings no bell, such as ChasquiMQ (Rust).
            self._polls_until_s = time.monotonic() + _SILENT_S
        self._known_due_ms, self._bell.has_rung = due_ms, False

    def _tick(self, moved: int, seen: Lead | Promoted) -> None:
        if self._sink is not None:
            self._sink.promoter_tick(PromoterTick(moved, seen.depth, seen.oldest_lag_ms))
