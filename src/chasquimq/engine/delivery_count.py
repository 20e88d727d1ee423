"""Keeps delivery counts right: charges what starts, and nothing that waits or goes back unstarted.

The server counts deliveries. A run that died with its worker is known by that count alone, so it must
not hold deliveries that started nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.engine.supervisor import Ticker
from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from chasquimq.engine.in_flight import InFlight
    from chasquimq.engine.settlement import Counters
    from chasquimq.model.delivery import Delivery
    from chasquimq.store.consumer.lanes import Count
    from chasquimq.store.consumer.store import ConsumerStore

_RETRY_MS = 100


class DeliveryCounts:
    """Uncharges what waits, in batches; charges one delivery right before its start."""

    name = "delivery-counts"

    def __init__(self, store: ConsumerStore, in_flight: InFlight, uncharge_after_ms: int) -> None:
        self._store = store
        self._in_flight = in_flight
        self._uncharge_after_ms = uncharge_after_ms
        # Entries whose count on the server may be wrong, until a write has set it right.
        self._doubted: set[bytes] = set()
        self._ticker = Ticker()

    def stop(self) -> None:
        self._ticker.stop()

    def correct(self, known: list[Delivery]) -> None:
        """A delivery of an id we hold was counted by the server, but starts nothing."""
        for again in known:
            held = self._in_flight.get(again.key)
            if held is not None:
                # Others may have run it while we stood still, and that is spent, too.
                own = held.is_charged or again.key in self._doubted
                held.earlier = max(held.earlier, again.earlier - own)
                self._in_flight.suspect([held])
        self._doubted.update(delivery.key for delivery in known)

    def suspect(self, redelivered: list[Delivery]) -> None:
        """Charge what was delivered before only when it starts, not when it is read.

        One of them may end this process too, and the others must not pay for it.
        """
        for delivery in redelivered:
            delivery.is_charged = False
            self._doubted.add(delivery.key)
        if redelivered:
            self._ticker.nudge()

    async def charge(self, delivery: Delivery) -> bool:
        """Count a start before it happens; False: the entry is ours no more.

        Other counts that are in doubt are set right before: this start may end the process.
        """
        # Said before it is written, so that a correction meanwhile does not take it back.
        delivery.is_charged = True
        while True:
            doubted, self._doubted = self._doubted - {delivery.key}, set()
            own = (delivery.key, delivery.earlier + 1)
            try:
                lost = await self._store.charge([*self._counts(doubted), own])
            except StoreError:
                # No start without its charge, however long the server is away.
                self._doubted |= doubted
                await asyncio.sleep(_RETRY_MS / 1000)
                continue
            return delivery.key not in lost

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self.run_once()
            await self._ticker.pause(self._uncharge_after_ms / 2)

    async def run_once(self) -> None:
        """Uncharge what has waited too long, correct what was counted twice."""
        self._doubt_overdue()
        doubted, self._doubted = self._doubted, set()
        counts = self._counts(doubted)
        if not counts:
            return
        try:
            await self._store.charge(counts)
        except StoreError:
            self._doubted |= doubted
            raise

    def _doubt_overdue(self) -> None:
        since_ns = time.monotonic_ns() - self._uncharge_after_ms * 1_000_000
        for delivery in self._in_flight.waiting:
            if delivery.is_charged and delivery.held_since_ns <= since_ns:
                # From now on a start charges again, whether or not the next write gets through.
                delivery.is_charged = False
                self._doubted.add(delivery.key)

    def _counts(self, keys: set[bytes]) -> list[Count]:
        """The counts as they should be now; a start since the doubt is in them."""
        held = [self._in_flight.get(key) for key in keys]
        return [(one.key, one.earlier + one.is_charged) for one in held if one is not None]


class Requeue:
    """Gives entries back to the group, with the number of deliveries that they are charged with."""

    def __init__(self, store: ConsumerStore, in_flight: InFlight, counters: Counters) -> None:
        self._store = store
        self._in_flight = in_flight
        self._counters = counters

    async def give(self, counts: Sequence[Count]) -> None:
        if counts:
            self._counters.handed_back += await self._store.requeue(counts)
            self._in_flight.release([key for key, _ in counts])

    async def give_unstarted(self, deliveries: Sequence[Delivery]) -> None:
        """Give back what has not started here, charged with earlier deliveries only."""
        await self.give([(delivery.key, delivery.earlier) for delivery in deliveries])

    async def requeue_unseen(self) -> None:
        """Give back what an answer brought that never arrived; it would be ours for a whole lease."""
        self._store.has_gap = False
        held = set(self._in_flight.keys())
        try:
            pending = await self._store.pending()
            await self.give(
                [(key, self._spent(count)) for key, count in pending if key not in held]
            )
        except StoreError:
            self._store.has_gap = True
            raise

    async def give_all_unstarted(self) -> None:
        """Give back whatever the server gave us and never started here; what runs stays leased."""
        counts: list[Count] = []
        for key, count in await self._store.pending():
            delivery = self._in_flight.get(key)
            if delivery is None:
                counts.append((key, self._spent(count)))
            elif not delivery.started_ns:
                counts.append((key, delivery.earlier))
        await self.give(counts)

    def _spent(self, count: int) -> int:
        """What a delivery that nobody heard of is charged with beside itself.

        The claim script charges only what had no charge, so that a larger count is of earlier runs.
        """
        is_charged = count == 1 or self._store.abilities.claim_on_read
        return max(0, count - is_charged)
