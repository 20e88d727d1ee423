"""What a lost lease means for its job: marked at once, told on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from chasquimq.engine.counters import Counters
    from chasquimq.engine.failure_log import FailureLog
    from chasquimq.engine.holdings import Holdings
    from chasquimq.engine.listening import Listener
    from chasquimq.model.delivery import Delivery

logger = get_logger(__name__)


class LeaseAlarm:
    """Rung by the lease thread, heard by the listener and the user's hook."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        holdings: Holdings,
        counters: Counters,
        failure_log: FailureLog,
        listener: Listener | None,
        on_lost: Callable[[Delivery], None] | None,
    ) -> None:
        self._loop = loop
        self._holdings = holdings
        self._counters = counters
        self._failure_log = failure_log
        self._listener = listener
        self._on_lost = on_lost

    def ring(self, entry_ids: list[bytes]) -> None:
        """Called by the lease thread: mark at once, tell the user on the loop."""
        for entry_id in entry_ids:
            delivery = self._holdings.get(entry_id)
            if delivery is not None and not (delivery.is_lease_lost or delivery.is_finished):
                delivery.is_lease_lost = True
                self._loop.call_soon_threadsafe(self._tell, delivery)

    def _tell(self, delivery: Delivery) -> None:
        if delivery.is_finished or self._holdings.get(delivery.entry_id) is None:
            return  # its ack was on the way
        self._counters.leases_lost += 1
        self._failure_log.lease_lost(delivery)
        if self._listener is not None:
            self._listener.lease_lost()
        if self._on_lost is not None and delivery.started_ns:
            self._call_hook(self._on_lost, delivery)

    def _call_hook(self, hook: Callable[[Delivery], None], delivery: Delivery) -> None:
        try:
            hook(delivery)
        except Exception:  # a callback of the event loop has nobody to raise to
            logger.exception("the hook on_lease_lost could not be called")
