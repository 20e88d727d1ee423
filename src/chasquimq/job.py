"""Describes a job as its producer and its handler see it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any

from chasquimq.model.json_value import JsonForm, ToDict

if TYPE_CHECKING:
    from chasquimq.engine.job_context import JobContext
    from chasquimq.model.delivery import Delivery

_current: ContextVar[Job | None] = ContextVar("chasquimq_current_job", default=None)


@dataclass(init=False)
class Job(ToDict):
    """What was added; handlers get one with the same fields.

    `attempt` counts the runs before this one, crashes included; `run_number` counts from 1.
    """

    id: str
    name: str
    data: Annotated[Any, JsonForm()]
    attempt: int = 0
    created_at_ms: int = 0
    is_duplicate: bool = field(default=False, repr=False, compare=False)

    # Set for the hooks on_failed and on_dead: what was raised, and why it was given up.
    error: str = field(default="", init=False, repr=False, compare=False)
    reason: str = field(default="", init=False, repr=False, compare=False)

    def __init__(
        self,
        id: str,
        name: str,
        data: Any,
        attempt: int = 0,
        created_at_ms: int = 0,
        _queue: Any = None,
        is_duplicate: bool = False,
    ) -> None:
        self.id = id
        self.name = name
        self.data = data
        self.attempt = attempt
        self.created_at_ms = created_at_ms
        # No field: what turns a job into JSON reads the fields, and a queue is none of it.
        self._queue = _queue
        self.is_duplicate = is_duplicate

    @property
    def attempts_made(self) -> int:
        return self.attempt

    @property
    def run_number(self) -> int:
        return self.attempt + 1

    @property
    def state(self) -> dict[str, Any]:
        """The worker's own dict, filled by `on_startup`; empty outside a worker."""
        return {}

    @property
    def redelivered(self) -> bool:
        """Whether an earlier delivery may have started this very attempt's work."""
        return False

    @property
    def lease_lost(self) -> bool:
        """Whether another worker may run this job now; stop side effects when it turns True."""
        return False

    async def wait_for_result(self, *, timeout: float = 30.0, poll_interval: float = 0.1) -> Any:
        """Wait for what the handler returns; see `Queue.wait_for_result`."""
        if self._queue is None:
            raise RuntimeError(
                "wait_for_result needs the queue the job was added to; "
                "use queue.wait_for_result(job.id)"
            )
        return await self._queue.wait_for_result(
            self.id, timeout=timeout, poll_interval=poll_interval
        )

    def idempotency_key(self, step: str = "") -> str:
        """The same text for every run of this job, to hand to services that dedupe by key."""
        return blake2b(f"{self.id}\0{step}".encode(), digest_size=16).hexdigest()


class _Decoded:
    """Decodes the data of a job when first asked for; from then on it is an attribute like others.

    `__getattr__` would do the same, and raise and catch an AttributeError for each job.
    """

    def __get__(self, job: DeliveredJob | None, _owner: type | None = None) -> Any:
        if job is None:
            return self
        # A part of the class, written outside of it.
        context = job._context  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        job.data = data = context.decode(job.delivery.payload)
        return data


class DeliveredJob(Job):
    """A job in a handler's hands.

    `state` is the worker's own dict, filled by `on_startup` and shared by all handlers.
    """

    data: Any = _Decoded()

    def __init__(self, delivery: Delivery, context: JobContext) -> None:
        """`context` connects it with its worker, which may be another process."""
        self.id = delivery.job_id
        self.name = delivery.name
        self.attempt = delivery.spent + delivery.earlier
        self.created_at_ms = delivery.created_at_ms
        self.delivery = delivery
        self._context = context

    def values(self) -> tuple[str, str, bytes, int, int, int, bool]:
        """What a child process needs to build the same job."""
        delivery = self.delivery
        return (
            self.id, self.name, delivery.payload, self.attempt,
            self.created_at_ms, delivery.run_number, delivery.was_redelivered,
        )  # fmt: skip

    @property
    def state(self) -> dict[str, Any]:
        return self._context.state

    @property
    def redelivered(self) -> bool:
        return self.delivery.was_redelivered

    @property
    def lease_lost(self) -> bool:
        return self._context.is_lease_lost(self.delivery)


def current_job() -> Job | None:
    """The job whose handler is running here, or None outside a handler."""
    return _current.get()


enter_job = _current.set
