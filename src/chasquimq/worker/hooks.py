"""Calls the hooks of a worker, and opens a span for each run."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chasquimq.engine.listeners import Listener
from chasquimq.errors import SettingsError
from chasquimq.job import DeliveredJob, Job, enter_job
from chasquimq.model.delivery import Delivery
from chasquimq.model.job_options import with_field_hints
from chasquimq.model.log import LogThrottle, get_logger

if TYPE_CHECKING:
    from chasquimq.engine.job_context import JobContext
    from chasquimq.engine.runner import Begin
    from chasquimq.model.delivery import Burying, Failure, Retrying
    from chasquimq.telemetry.tracing import RunSpan, Tracing

# It is handed the worker, which this room does not know.
WorkerHook = Callable[[Any], Awaitable[None] | None]
JobHook = Callable[[Job], Awaitable[None] | None]

HOOK_NAMES = (
    "on_startup", "on_shutdown", "on_completed", "on_failed", "on_dead", "on_lease_lost",
)  # fmt: skip
logger = get_logger(__name__)
_POLL_S = 0.05
RUNNING_MAX = 1_000
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024


class HookCalls:
    """Hooks under way, each in a task of its own; those beyond a number wait for their turn.

    Waiting calls keep their jobs in memory, so both have a maximum: the calls and their bytes.
    """

    def __init__(self, subject: Callable[[], str]) -> None:
        """`subject` says whose hooks these are, for the log."""
        self._subject = subject
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[JobHook, DeliveredJob]] = deque()
        self._waiting_bytes = 0
        self._throttle = LogThrottle()

    def start(self, hook: JobHook, job: DeliveredJob) -> None:
        """Call the hook soon; a job never waits for it, and where too many wait it is left out."""
        if len(self._tasks) < RUNNING_MAX:
            self._start(hook, job)
        elif len(self._waiting) < WAITING_MAX and self._waiting_bytes < WAITING_BYTES_MAX:
            self._waiting.append((hook, job))
            self._waiting_bytes += _held_bytes(job)
        elif self._throttle.allows():
            logger.warning(
                "hooks of %s are slower than jobs, and calls are left out%s",
                self._subject(),
                self._throttle.held_back_text(),
            )

    async def settle(self, deadline_s: Callable[[], float]) -> None:
        """Wait for all of them until the deadline, which may move closer; then cancel."""
        loop = asyncio.get_running_loop()
        while self._tasks and (left_s := deadline_s() - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=min(_POLL_S, left_s))
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    def _start(self, hook: JobHook, job: DeliveredJob) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._call_for_job(hook, job), name="chasqui-hook")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            hook, job = self._waiting.popleft()
            self._waiting_bytes -= _held_bytes(job)
            self._start(hook, job)

    async def _call_for_job(self, hook: JobHook, job: Job) -> None:
        enter_job(job)
        await self.call(hook, job)

    async def call(self, hook: Callable[[Any], Awaitable[None] | None], argument: Any) -> None:
        """Call a hook to its end; what it raises is logged."""
        try:
            await _maybe(hook(argument))
        except Exception:  # a user's hook may raise anything, the job is done already
            name = getattr(hook, "__qualname__", type(hook).__name__)
            logger.exception("the hook %s of %s raised", name, self._subject())


@with_field_hints
@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Plain or async functions that a worker calls; one that raises is logged and harms no job."""

    on_startup: WorkerHook | None = None
    on_shutdown: WorkerHook | None = None
    on_completed: JobHook | None = None
    on_failed: JobHook | None = None
    on_dead: JobHook | None = None
    on_lease_lost: JobHook | None = None

    def __post_init__(self) -> None:
        for name in HOOK_NAMES:
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise SettingsError(name, hook, "a function that takes one argument")


class HookRunner:
    """Calls the hooks of one worker; `context` is behind the jobs that they get."""

    def __init__(self, hooks: Hooks, context: JobContext, subject: Callable[[], str]) -> None:
        self.calls = HookCalls(subject)
        self._hooks = hooks
        self._context = context

    async def startup(self, worker: object) -> None:
        """Raises what the hook raises: a worker that cannot start must not run."""
        if self._hooks.on_startup is not None:
            await _maybe(self._hooks.on_startup(worker))

    async def shutdown(self, worker: object) -> None:
        if self._hooks.on_shutdown is not None:
            await self.calls.call(self._hooks.on_shutdown, worker)

    def listeners(self) -> list[Listener]:
        """The listener that calls hooks; empty where no hook is about outcomes."""
        hooks = self._hooks
        if not any((hooks.on_completed, hooks.on_failed, hooks.on_dead)):
            return []
        return [HookListener(hooks, self._context, self.calls)]

    def lease_lost(self) -> Callable[[Delivery], None] | None:
        hook = self._hooks.on_lease_lost
        if hook is None:
            return None
        return lambda delivery: self.calls.start(hook, DeliveredJob(delivery, self._context))


class HookListener(Listener):
    """Calls a hook for each job of a committed batch."""

    def __init__(self, hooks: Hooks, context: JobContext, calls: HookCalls) -> None:
        self._calls = calls
        self._on_completed = hooks.on_completed
        self._on_failed = hooks.on_failed
        self._on_dead = hooks.on_dead
        self._context = context

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        if self._on_completed is not None:
            for delivery in deliveries:
                self._calls.start(self._on_completed, self._job(delivery))

    def retried(self, moves: Sequence[Retrying]) -> None:
        if self._on_failed is not None:
            for move in moves:
                if not move.is_snooze:
                    self._calls.start(self._on_failed, self._job(move.delivery, move.failure))

    def buried(self, moves: Sequence[Burying]) -> None:
        for move in moves:
            if not isinstance(move.entry, Delivery):
                continue
            job = self._job(move.entry, move.failure, move.reason)
            # The last attempt failed like those before it; what never started did not.
            if self._on_failed is not None and move.was_run:
                self._calls.start(self._on_failed, job)
            if self._on_dead is not None:
                self._calls.start(self._on_dead, job)

    def _job(
        self, delivery: Delivery, failure: Failure | None = None, reason: str = ""
    ) -> DeliveredJob:
        job = DeliveredJob(delivery, self._context)
        job.error = failure.text if failure else ""
        job.reason = str(reason)
        return job


def _held_bytes(job: DeliveredJob) -> int:
    return len(job.delivery.payload) + len(job.delivery.envelope)


async def _maybe(value: Awaitable[None] | None) -> None:
    if inspect.isawaitable(value):
        await value


_NOTHING: Mapping[str, str | int] = {}


class RunSpans(Listener):
    """Starts spans with the handlers of one worker, and ends them when outcomes are committed.

    At most as many are open as the worker holds jobs.
    """

    def __init__(self, tracing: Tracing, queue: str, group: str, worker: str) -> None:
        self._tracing = tracing
        self._queue = queue
        self._about: dict[str, str | int] = {
            "messaging.consumer.group.name": group,
            "messaging.client.id": worker,
        }
        self._open: dict[bytes, tuple[RunSpan, Delivery]] = {}

    def around(self, begin: Begin) -> Begin:
        """The same start of a run, inside a span."""

        def begin_in_span(delivery: Delivery) -> tuple[Coroutine[Any, Any, Any], Any]:
            span = self._tracing.start_run(
                self._queue, delivery, delivery.extras or {}, self._about
            )
            self._open[delivery.key] = span, delivery
            return begin(delivery)

        return begin_in_span

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._end(delivery.key, "completed")

    def retried(self, moves: Sequence[Retrying]) -> None:
        for move in moves:
            outcome = "snoozed" if move.is_snooze else "retried"
            failure = None if move.is_snooze else move.failure
            self._end(move.key, outcome, failure, {"chasquimq.job.backoff_ms": move.after_ms})

    def buried(self, moves: Sequence[Burying]) -> None:
        for move in moves:
            self._end(move.key, "dead", move.failure, {"chasquimq.job.reason": str(move.reason)})

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        for move in moves:
            failure = getattr(move, "failure", None)
            self._end(move.key, "unproven" if is_unproven else "stale", failure)

    def close(self) -> None:
        """End the spans of what was given back, or still runs in a thread."""
        for key in list(self._open):
            self._end(key, "interrupted")

    def _end(
        self,
        key: bytes,
        outcome: str,
        failure: Failure | None = None,
        attributes: Mapping[str, str | int] = _NOTHING,
    ) -> None:
        found = self._open.pop(key, None)
        if found is None or not found[1].started_ns:
            return  # nothing ran
        span, delivery = found
        span.end(
            outcome,
            duration_us=delivery.duration_us if delivery.is_finished else None,
            error=None if failure is None else (failure.error_type, failure.message),
            attributes=attributes,
        )
