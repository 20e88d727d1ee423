"""Keeps delivery counts honest: what waits unstarted is not charged, what starts is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chasquimq.engine.loop import Ticker
from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from chasquimq.engine.holdings import Holdings
    from chasquimq.model.delivery import Delivery
    from chasquimq.store.consuming import ConsumerStore

_RETRY_MS = 100


class Charger:
    """Uncharges in batches; charges one delivery right before its start."""

    name = "charger"

    def __init__(self, store: ConsumerStore, holdings: Holdings, uncharge_after_ms: int) -> None:
        self._store = store
        self._holdings = holdings
        self._uncharge_after_ms = uncharge_after_ms
        self._corrections: list[tuple[bytes, int]] = []
        self._ticker = Ticker()

    def stop(self) -> None:
        self._ticker.stop()

    def correct(self, known: list[Delivery]) -> None:
        """A delivery of an id we hold was counted by the server, but starts nothing."""
        for delivery in known:
            held = self._holdings.get(delivery.entry_id)
            if held is not None:
                count = held.earlier + (1 if held.is_charged else 0)
                self._corrections.append((delivery.entry_id, count))

    async def charge(self, delivery: Delivery) -> bool:
        """Count a start before it happens; False: the entry is ours no more."""
        while True:
            try:
                lost = await self._store.charge([(delivery.entry_id, delivery.earlier + 1)])
            except StoreError:
                # No start without its charge, however long the server is away.
                await self._ticker.pause(_RETRY_MS)
                continue
            delivery.is_charged = not lost
            return not lost

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self.run_once()
            await self._ticker.pause(self._uncharge_after_ms / 2)

    async def run_once(self) -> None:
        """Uncharge what has waited too long, correct what was counted twice."""
        counts = self._corrections + self._overdue()
        self._corrections = []
        if counts:
            await self._store.charge(counts)

    def _overdue(self) -> list[tuple[bytes, int]]:
        since_ns = time.monotonic_ns() - self._uncharge_after_ms * 1_000_000
        counts: list[tuple[bytes, int]] = []
        for delivery in self._holdings.waiting:
            if delivery.is_charged and delivery.held_since_ns <= since_ns:
                # From now on a start charges again, whether or not this write gets through.
                delivery.is_charged = False
                counts.append((delivery.entry_id, delivery.earlier))
        return counts
