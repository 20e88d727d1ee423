"""What a worker tells its owner: at start, at the end, and after each committed outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chasquimq.engine.listening import Listener
from chasquimq.job import DeliveredJob, Job
from chasquimq.model.delivery import Delivery
from chasquimq.store.payloads import decode

if TYPE_CHECKING:
    from chasquimq.model.outcome import Burying, Retrying
    from chasquimq.model.verdict import Failure

# It is handed the worker, which this room does not know.
WorkerHook = Callable[[Any], Awaitable[None] | None]
JobHook = Callable[[Job], Awaitable[None] | None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Plain or async functions; one that raises is logged and harms no job."""

    on_startup: WorkerHook | None
    on_shutdown: WorkerHook | None
    on_completed: JobHook | None
    on_failed: JobHook | None
    on_dead: JobHook | None
    on_lease_lost: JobHook | None

    async def startup(self, worker: object) -> None:
        """Raises what the hook raises: a worker that cannot start must not run."""
        if self.on_startup is not None:
            await _maybe(self.on_startup(worker))

    async def shutdown(self, worker: object) -> None:
        if self.on_shutdown is not None:
            await _call(self.on_shutdown, worker)

    def listeners(self, state: dict[str, Any]) -> list[Listener]:
        """Whoever hears of outcomes; empty when no hook does."""
        hooks = (self.on_completed, self.on_failed, self.on_dead)
        return [HookListener(*hooks, state)] if any(hooks) else []

    def lease_lost(self, state: dict[str, Any]) -> Callable[[Delivery], None] | None:
        hook = self.on_lease_lost
        if hook is None:
            return None
        return lambda delivery: _spawn(hook, DeliveredJob(delivery, decode, state))


class HookListener(Listener):
    """Calls a hook for each job of a committed batch."""

    def __init__(
        self,
        on_completed: JobHook | None,
        on_failed: JobHook | None,
        on_dead: JobHook | None,
        state: dict[str, Any],
    ) -> None:
        self._on_completed = on_completed
        self._on_failed = on_failed
        self._on_dead = on_dead
        self._state = state

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        if self._on_completed is not None:
            for delivery in deliveries:
                _spawn(self._on_completed, self._job(delivery))

    def retried(self, moves: Sequence[Retrying]) -> None:
        if self._on_failed is not None:
            for move in moves:
                if not move.is_snooze:
                    _spawn(self._on_failed, self._job(move.delivery, move.failure))

    def buried(self, moves: Sequence[Burying]) -> None:
        if self._on_dead is not None:
            for move in moves:
                if isinstance(move.entry, Delivery):
                    _spawn(self._on_dead, self._job(move.entry, move.failure, move.reason))

    def _job(
        self, delivery: Delivery, failure: Failure | None = None, reason: str = ""
    ) -> DeliveredJob:
        job = DeliveredJob(delivery, decode, self._state)
        job.error = failure.text if failure else ""
        job.reason = str(reason)
        return job


_under_way: set[asyncio.Task[None]] = set()


def _spawn(hook: JobHook, job: Job) -> None:
    task = asyncio.get_running_loop().create_task(_call(hook, job), name="chasqui-hook")
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


async def _call(hook: Callable[[Any], Awaitable[None] | None], subject: Any) -> None:
    try:
        await _maybe(hook(subject))
    except Exception:  # a user's hook may raise anything, the job is done already
        logger.exception("a hook raised")


async def _maybe(value: Awaitable[None] | None) -> None:
    if inspect.isawaitable(value):
        await value
