"""What a worker tells its owner: at start, at the end, and after each committed outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chasquimq.job import DeliveredJob, Job
from chasquimq.model.delivery import Delivery
from chasquimq.store.payloads import decode

if TYPE_CHECKING:
    from chasquimq.engine.outcomes import Kind, Listen

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

    def listener(self, state: dict[str, Any]) -> Listen | None:
        """What the engine tells of outcomes; None when nobody listens."""
        hooks: dict[str, JobHook] = {
            kind: hook
            for kind, hook in (
                ("completed", self.on_completed),
                ("failed", self.on_failed),
                ("dead", self.on_dead),
            )
            if hook is not None
        }
        return _listener(hooks, state) if hooks else None

    def lease_lost(self, state: dict[str, Any]) -> Callable[[Delivery], None] | None:
        hook = self.on_lease_lost
        if hook is None:
            return None
        return lambda delivery: _spawn(hook, DeliveredJob(delivery, decode, state))


def _listener(hooks: dict[str, JobHook], state: dict[str, Any]) -> Listen:
    def listen(kind: Kind, moves: Sequence[Any]) -> None:
        hook = hooks.get(kind)
        if hook is None:
            return
        for move in moves:
            delivery = move if isinstance(move, Delivery) else _delivery_of(move)
            if delivery is not None:
                _spawn(hook, DeliveredJob(delivery, decode, state))

    return listen


def _delivery_of(move: Any) -> Delivery | None:
    entry = getattr(move, "delivery", None) or getattr(move, "entry", None)
    return entry if isinstance(entry, Delivery) else None


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
