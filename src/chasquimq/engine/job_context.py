"""Connects a running handler with its worker, in whatever process the handler runs.

One context serves all jobs of a worker, so each call names the delivery. What a handler asks goes
through here, and what it reports; a child process has a context that sends the same over its socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from chasquimq.model.log import get_logger
from chasquimq.store.consumer.decode import decode

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery

logger = get_logger(__name__)
Receive = Callable[["Delivery", Any], None]


class JobContext(Protocol):
    """What a job asks of the worker that runs it; from any thread of the handler's process."""

    # Filled by `on_startup`; in a child process its own, empty at first.
    state: dict[str, Any]
    decode: Callable[[bytes], Any]

    def is_lease_lost(self, delivery: Delivery) -> bool:
        """Whether another worker may run the job now."""
        ...

    def report(self, delivery: Delivery, topic: str, value: Any) -> None:
        """Send the worker something about a job that runs; no call waits, and no answer comes."""
        ...


class WorkerContext:
    """The context in the worker's own process."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.decode: Callable[[bytes], Any] = decode
        self._receivers: dict[str, Receive] = {}
        # Runs in other processes, which need to know what becomes of their leases.
        self._remote: dict[bytes, Callable[[], None]] = {}

    def is_lease_lost(self, delivery: Delivery) -> bool:
        return delivery.is_lease_lost

    def report(self, delivery: Delivery, topic: str, value: Any) -> None:
        """Hand a report to its receiver; one that raises harms no job."""
        receive = self._receivers.get(topic)
        if receive is None:
            logger.debug("no receiver for %s of job %s", topic, delivery.job_id)
            return
        try:
            receive(delivery, value)
        except Exception:  # the job goes on, whatever its worker makes of the report
            logger.exception("%s of job %s could not be received", topic, delivery.job_id)

    def on_report(self, topic: str, receive: Receive) -> None:
        """Receive reports of this topic, from any thread."""
        self._receivers[topic] = receive

    def enter_remote(self, delivery: Delivery, on_lease_lost: Callable[[], None]) -> None:
        """Note a run in another process, and what is called when its lease is lost."""
        self._remote[delivery.key] = on_lease_lost

    def leave_remote(self, delivery: Delivery) -> None:
        """The run in another process has ended."""
        self._remote.pop(delivery.key, None)

    def lease_lost(self, delivery: Delivery) -> None:
        """Pass the loss of a lease on to where the job runs; called on the event loop."""
        on_lost = self._remote.get(delivery.key)
        if on_lost is not None:
            on_lost()
