"""Gives jobs back that this worker holds and has not started, so that others need not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chasquimq.engine.counters import Counters
    from chasquimq.engine.holdings import Holdings
    from chasquimq.store.consuming import ConsumerStore


class HandBack:
    """Entries go back with the number of deliveries that they are charged with."""

    def __init__(self, store: ConsumerStore, holdings: Holdings, counters: Counters) -> None:
        self._store = store
        self._holdings = holdings
        self._counters = counters

    async def give(self, counts: Sequence[tuple[bytes, int]]) -> None:
        if counts:
            self._counters.handed_back += await self._store.hand_back(counts)
            self._holdings.release([entry_id for entry_id, _ in counts])

    async def give_unseen(self) -> None:
        """What an answer brought that never arrived would else be ours for a whole lease."""
        self._store.has_gap = False
        held = set(self._holdings.ids())
        try:
            pending = await self._store.pending()
            await self.give(
                [(one, self._spent(count)) for one, count in pending if one not in held]
            )
        except StoreError:
            self._store.has_gap = True
            raise

    async def give_unstarted(self) -> None:
        """What the server gave us and never started here; those still running stay leased."""
        counts: list[tuple[bytes, int]] = []
        for entry_id, count in await self._store.pending():
            delivery = self._holdings.get(entry_id)
            if delivery is None:
                counts.append((entry_id, self._spent(count)))
            elif not delivery.started_ns:
                counts.append((entry_id, delivery.earlier))
        await self.give(counts)

    def _spent(self, count: int) -> int:
        """What a delivery that nobody heard of is charged with beside itself.

        The claim script charges only what had no charge, so that a larger count is of earlier runs.
        """
        is_charged = count == 1 or self._store.abilities.claim_on_read
        return max(0, count - is_charged)
