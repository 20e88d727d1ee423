"""Reads jobs while there is room, takes over what the dead left, and refuses what may not start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chasquimq.model.delivery import Burying
from chasquimq.model.retry import RetryPolicy, judge_start
from chasquimq.store.consumer.decode import EMPTY

if TYPE_CHECKING:
    from chasquimq.engine.delivery_count import DeliveryCounts, Requeue
    from chasquimq.engine.in_flight import InFlight
    from chasquimq.engine.lease import StallDetector
    from chasquimq.engine.listeners import Listener
    from chasquimq.engine.runner import Runners
    from chasquimq.engine.settlement import Settlement
    from chasquimq.engine.upkeep import UpkeepLoops
    from chasquimq.model.delivery import Delivery
    from chasquimq.store.consumer.decode import ReadBatch
    from chasquimq.store.consumer.store import ConsumerStore
    from chasquimq.store.net.connection import ServerClock

_LOOK_MS_MAX = 500
_QUIET_MS_MAX = 10_000
BUSY_BLOCK_MS_MAX = 500
# Suspects that wait are soon gone, and then the next of them may be claimed.
_SUSPECTS_BLOCK_MS = 20


class Reader:
    """Keeps one read on the wire while there is room."""

    name = "reader"

    def __init__(
        self,
        store: ConsumerStore,
        in_flight: InFlight,
        intake: Intake,
        claimer: Claimer,
        stall_detector: StallDetector,
        *,
        requeue: Requeue,
        upkeep: UpkeepLoops,
        settlement: Settlement,
        block_ms: int,
    ) -> None:
        self._store = store
        self._in_flight = in_flight
        self._intake = intake
        self._claimer = claimer
        self._stall_detector = stall_detector
        self._requeue = requeue
        self._upkeep = upkeep
        self._settlement = settlement
        self._block_ms = block_ms
        self._was_empty = True
        self._is_stopping = False
        self._is_idle = False
        self.last_read_s = time.monotonic()

    @property
    def can_be_woken(self) -> bool:
        """Whether it has nothing to do, and others can end its read."""
        return self._is_idle and self._store.can_be_woken

    def stop(self) -> None:
        self._is_stopping = True
        self._in_flight.wake()

    async def run(self) -> None:
        while not self._is_stopping:
            await self.run_once()

    async def run_once(self) -> None:
        """One read, if there is room for it."""
        room = self._in_flight.room()
        if room <= 0:
            await self._in_flight.wait_for_room()
            return
        if self._store.has_gap:
            await self._requeue.requeue_unseen()
        asked_ns = time.monotonic_ns()
        batch = await self._ask(room)
        self._is_idle = not batch.size
        self.last_read_s = time.monotonic()
        if batch.size:
            self._date(batch, asked_ns)
            if batch.taken_over:
                await self._take_over(batch)
            else:
                self._intake.take(batch)
        if self._settlement.listener is not None:
            self._report(self._settlement.listener, batch)
        if self._store.was_woken:
            await self._answer_call()

    async def _take_over(self, batch: ReadBatch) -> None:
        # What is held here already was our own: we stood still for a lease.
        others = [one for one in batch.taken_over if not self._in_flight.has(one.key)]
        self._intake.take(batch)
        others = [one for one in others if one.owner != self._store.consumer]
        if others:
            are_named = all(one.owner for one in others)
            silent = [] if are_named else await self._store.silent_workers()
            self._settlement.failure_log.taken_over(others, silent)

    async def _read(self, room: int) -> ReadBatch:
        is_idle = self.can_be_woken
        # Jobs that are given back end no read of a busy worker, so that none of its reads is long.
        wanted_ms = self._block_ms if is_idle else min(self._block_ms, BUSY_BLOCK_MS_MAX)
        block_ms = self._claimer.block_ms(wanted_ms, is_idle=is_idle)
        return await self._store.read(room, block_ms, is_idle=is_idle)

    async def _answer_call(self) -> None:
        """Another process wants an idle worker: to take jobs that were given back, or to lead."""
        self._store.was_woken = False
        self._upkeep.nudge()
        if self._in_flight.room() > 0 and self._in_flight.suspects.may_claim:
            self._claimer.hurry()
        else:
            await self._store.wake_another()

    async def _ask(self, room: int) -> ReadBatch:
        """Claim, then read; what the dead left stays for others while suspects wait here."""
        if not self._in_flight.suspects.may_claim:
            block_ms = min(self._block_ms, _SUSPECTS_BLOCK_MS)
            return await self._store.read(room, block_ms, claims=False)
        batch = await self._claimer.claim(room, is_idle=self.can_be_woken)
        return batch if batch.size else await self._read(room)

    def _date(self, batch: ReadBatch, asked_ns: int) -> None:
        """What may have waited for us while we stood still is no older than the question."""
        if self._stall_detector.has_slept_since(asked_ns):
            for delivery in batch.deliveries:
                delivery.held_since_ns = asked_ns

    def _report(self, listener: Listener, batch: ReadBatch) -> None:
        if batch.size:
            reclaimed = 0 if batch.is_plain else sum([one.earlier > 0 for one in batch.deliveries])
            listener.read(batch.size, reclaimed)
        elif not self._was_empty:
            listener.drained()
        self._was_empty = not batch.size


class Intake:
    """What happens to a batch on arrival, whether it was read or claimed."""

    def __init__(
        self,
        settlement: Settlement,
        runners: Runners,
        policy: RetryPolicy,
        clock: ServerClock,
        delivery_counts: DeliveryCounts,
    ) -> None:
        self._in_flight = settlement.in_flight
        self._settlement = settlement
        self._runners = runners
        self._policy = policy
        self._clock = clock
        self._delivery_counts = delivery_counts

    def take(self, batch: ReadBatch) -> None:
        """Let deliveries in, send the others to the DLQ."""
        for entry in batch.rejected:
            self._refuse(Burying(entry, entry.reason, 0))
        startable = batch.deliveries if batch.is_plain else self._startable(batch.deliveries)
        known = self._in_flight.admit(startable, are_plain=batch.is_plain)
        if known:
            self._delivery_counts.correct(known)
        if startable is not batch.deliveries:
            self._delivery_counts.suspect(
                [one for one in startable if one.earlier and one not in known]
            )
        self._runners.wake()

    def _startable(self, deliveries: list[Delivery]) -> list[Delivery]:
        now_ms = self._clock.now_ms()
        return [one for one in deliveries if self._may_start(one, now_ms)]

    def _may_start(self, delivery: Delivery, now_ms: float) -> bool:
        if self._in_flight.get(delivery.key) is not None:
            return True  # it runs or waits here already, and is admitted once
        verdict = judge_start(delivery, self._policy, now_ms)
        if verdict is None:
            return True
        self._refuse(Burying(delivery, verdict.reason, delivery.run_number - 1))
        return False

    def _refuse(self, move: Burying) -> None:
        if self._in_flight.refuse(move.entry, move.size_bytes):
            self._settlement.burier.put(move)


class Claimer:
    """Asked before every read, so that jobs of dead workers get a free slot before new ones do.

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
        """Look before the next read, even if another worker has just looked."""
        self._is_hurried = True

    def block_ms(self, wanted_ms: int, *, is_idle: bool) -> int:
        """How long the next read may block without keeping the claimer waiting."""
        if self._store.abilities.claim_on_read:
            return wanted_ms
        return max(1, min(wanted_ms, int(self._due_in_ms(is_idle=is_idle))))

    async def claim(self, room: int, *, is_idle: bool) -> ReadBatch:
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
