"""Makes handlers of any kind one coroutine function of a job."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeGuard

from chasquimq.engine.process_pool.pool import ProcessPool
from chasquimq.engine.thread_pool import ThreadPool
from chasquimq.errors import SettingsError
from chasquimq.job import DeliveredJob, Job
from chasquimq.model.job_options import BackoffLike, retry_override
from chasquimq.model.retry import (
    NO_LIMITS,
    BackoffDefaults,
    HandlerLimits,
    RetryPolicy,
    UnknownName,
)
from chasquimq.settings import Pool, at_least
from chasquimq.worker.batching import Batch, Batcher, checked_batch

if TYPE_CHECKING:
    from chasquimq.engine.job_context import WorkerContext
    from chasquimq.settings import WorkerSettings

# Of one job, or with `batch` of many.
HandlerFunction = Callable[[Any], Awaitable[Any]] | Callable[[Any], Any]


class Handler:
    """A function of a job, and what its jobs get instead of what the worker grants.

    A job's own `attempts`, `backoff` and `timeout_ms` go before those of its handler. Calling
    the handler calls the function.
    """

    def __init__(
        self,
        function: HandlerFunction,
        *,
        attempts: int | None = None,
        backoff: float | BackoffLike | Mapping[str, Any] | None = None,
        timeout_ms: int | None = None,
        pool: Pool | None = None,
    ) -> None:
        """`attempts` are runs at most, `backoff` is what `Queue.add` takes.

        Raises:
            SettingsError: the function takes no job, or an option is refused.
        """
        self.function = self.__wrapped__ = _check_callable("handler", function)
        retry = retry_override(attempts, backoff)
        if timeout_ms is not None:
            at_least("timeout_ms", timeout_ms, 1)
        if pool not in (None, "thread", "process"):
            raise SettingsError("pool", pool, '"thread" or "process"')
        self.pool: Pool | None = pool
        self.limits = HandlerLimits(
            None if retry is None else retry.max_attempts,
            None if retry is None else retry.backoff,
            timeout_ms,
        )

    def __call__(self, job: Any) -> Any:
        return self.function(job)

    def __repr__(self) -> str:
        return f"Handler({getattr(self.function, '__qualname__', self.function)})"


AnyHandler = HandlerFunction | Handler
Handlers = AnyHandler | Mapping[str, AnyHandler]
_Async = Callable[[Any], Awaitable[Any]]
_UNKNOWN_NAMES_MAX = 1_000
# A name is compared with so many handlers at most: the event loop stands still meanwhile.
_COMPARED_MAX = 200


class HandlerSet:
    """What a worker runs: one handler, or one for each name."""

    def __init__(
        self, handlers: Handlers, settings: WorkerSettings, batch: Batch | None = None
    ) -> None:
        self._routes, self._all = _checked(handlers)
        self._settings = settings
        self._batch = batch
        self._batchers: list[Batcher] = []
        self._threads: ThreadPool | None = None
        self._processes: ProcessPool | None = None
        for what, handler in self._named():
            checked_batch(batch, settings.concurrency, handler.limits.timeout_ms)
            self._refuse_timeout_in_a_thread(what, handler)
            self._refuse_batches_in_processes(what, handler)

    @property
    def policy(self) -> RetryPolicy:
        """What jobs are granted that say nothing themselves."""
        retry = self._settings.retry
        limits = {name: one.limits for name, one in (self._routes or {}).items()}
        return RetryPolicy(
            max_attempts=retry.max_attempts,
            backoff=BackoffDefaults(
                initial_backoff_ms=retry.initial_backoff_ms,
                max_backoff_ms=retry.max_backoff_ms,
                multiplier=retry.multiplier,
                jitter_ms=retry.jitter_ms,
            ),
            unknown_name_retry_ms=retry.unknown_name_retry_ms,
            unknown_name_for_ms=retry.unknown_name_for_ms,
            timeout_ms=self._settings.timeout_ms,
            any_name=NO_LIMITS if self._routes is not None else self._all[0].limits,
            by_name={name: one for name, one in limits.items() if one != NO_LIMITS},
        )

    @property
    def names(self) -> list[str] | None:
        """Whose jobs it runs; None: one handler runs them all."""
        return None if self._routes is None else list(self._routes)

    @property
    def running_max(self) -> int:
        """How many jobs may start at once: none should wait for its thread or process."""
        if self._batch:
            return self._settings.concurrency
        return max(self._running_max_of(handler) for handler in self._all)

    async def open(self, context: WorkerContext) -> _Async:
        """Start the pools that are needed; the answer takes any job of this worker."""
        if any(self._runs_in(handler, "process") for handler in self._all):
            self._processes = ProcessPool(
                self._functions_in_processes, self._size_of("process"), context
            )
            await self._processes.start()
        if self._routes is not None:
            return _router({name: self._awaitable(one) for name, one in self._routes.items()})
        return self._awaitable(self._all[0])

    def hurry(self) -> None:
        """Nothing more will come: jobs that wait for others to join them run now."""
        for batcher in self._batchers:
            batcher.hurry()

    async def close(self, grace_s: float) -> None:
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            await self._processes.close(grace_s)

    def _named(self) -> list[tuple[str, Handler]]:
        """Each handler, and what an error calls it."""
        if self._routes is None:
            return [("", self._all[0])]
        return [(f"handler[{name!r}] ", one) for name, one in self._routes.items()]

    def _pool_of(self, handler: Handler) -> Pool:
        return handler.pool or self._settings.pool.kind

    def _runs_in(self, handler: Handler, pool: Pool) -> bool:
        return not _is_async(handler.function) and self._pool_of(handler) == pool

    def _running_max_of(self, handler: Handler) -> int:
        if _is_async(handler.function):
            return self._settings.concurrency
        return self._size_of(self._pool_of(handler))

    @property
    def _functions_in_processes(self) -> HandlerFunction | dict[str, HandlerFunction]:
        if self._routes is None:
            return self._all[0].function
        routes = self._routes.items()
        return {name: one.function for name, one in routes if self._runs_in(one, "process")}

    def _size_of(self, pool: Pool) -> int:
        wanted = self._settings.pool.size
        if wanted is None and pool == "process":
            # More children than cores only take turns, and each of them costs its imports.
            wanted = os.cpu_count() or 1
        return min(wanted or self._settings.concurrency, self._settings.concurrency)

    def _timeout_ms_of(self, handler: Handler) -> int | None:
        own = handler.limits.timeout_ms
        return self._settings.timeout_ms if own is None else own

    def _awaitable(self, handler: Handler) -> _Async:
        call = self._call(handler)
        if self._batch is None:
            return call
        if self._batch.form == "arrow":
            call = _with_tables(call)
        batcher = Batcher(
            call, self._batch,
            timeout_ms=self._timeout_ms_of(handler),
            is_unstoppable=not _is_async(handler.function),
        )  # fmt: skip
        self._batchers.append(batcher)
        return batcher

    def _call(self, handler: Handler) -> _Async:
        if _is_async(handler.function):
            return handler.function
        if self._runs_in(handler, "process"):
            return self._in_process(self._timeout_ms_of(handler))
        if self._threads is None:
            self._threads = ThreadPool(self._size_of("thread"), "chasqui-handler")
        return _in_thread(self._threads, handler.function)

    def _in_process(self, timeout_ms: int | None) -> _Async:
        processes = self._processes
        assert processes is not None, "the pool is opened before the first job"

        async def run(job: DeliveredJob) -> Any:
            delivery = job.delivery
            delivery.has_own_timer = True
            timeout = delivery.timeout_ms(timeout_ms)
            return await processes.run(job.name, job.values(), timeout, delivery)

        return run

    def _refuse_batches_in_processes(self, what: str, handler: Handler) -> None:
        if self._batch and self._runs_in(handler, "process"):
            raise SettingsError(
                f"{what}pool", "process", '"thread" for a `def` handler of batches',
                hint="only single jobs go to other processes; or use an `async def` handler",
            )  # fmt: skip

    def _refuse_timeout_in_a_thread(self, what: str, handler: Handler) -> None:
        timeout_ms = self._timeout_ms_of(handler)
        if timeout_ms is not None and self._runs_in(handler, "thread"):
            # Batches do not go to other processes.
            remedy = "use " if self._batch else 'use pool="process" or '
            where = what if handler.limits.timeout_ms is not None else ""
            raise SettingsError(
                f"{where}timeout_ms", timeout_ms, "unset for a `def` handler in a thread",
                hint=f"a thread cannot be stopped; {remedy}an `async def` handler",
            )  # fmt: skip


def _with_tables(call: _Async) -> _Async:
    from chasquimq.worker.batching import refuse_missing_arrow, with_tables

    refuse_missing_arrow()
    return with_tables(call)


def _in_thread(pool: ThreadPool, handler: HandlerFunction) -> _Async:
    async def run(job: Any) -> Any:
        if isinstance(job, DeliveredJob):
            job.delivery.is_unstoppable = True
        value = await pool.run(handler, job)
        # A plain function around a coroutine function only makes the coroutine.
        return await value if inspect.isawaitable(value) else value

    return run


def _router(routes: Mapping[str, _Async]) -> _Async:
    # Names may be made up without end, and one that is misspelt comes again and again.
    refusal = lru_cache(_UNKNOWN_NAMES_MAX)(partial(_unknown_name, list(routes)))

    def route(job: Job) -> Awaitable[Any]:
        handler = routes.get(job.name)
        if handler is None:
            raise UnknownName(*refusal(job.name))
        return handler(job)

    return route


def _unknown_name(handlers: Sequence[str], name: str) -> tuple[str, Sequence[str]]:
    """What is wrong, and all names of handlers, the nearest first."""
    if not name:
        return "the job has no name, and no handler is for jobs without one", handlers
    near = difflib.get_close_matches(name, handlers[:_COMPARED_MAX])
    hint = f"; did you mean {near[0]!r}?" if near else ""
    others = [one for one in handlers if one not in near]
    return f"no handler has the name {name!r}{hint}", [*near, *others]


def _are_routes(handlers: Handlers) -> TypeGuard[Mapping[str, AnyHandler]]:
    return isinstance(handlers, Mapping)


def _is_async(handler: HandlerFunction) -> bool:
    if inspect.iscoroutinefunction(handler):
        return True
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _checked(handlers: Handlers) -> tuple[dict[str, Handler] | None, list[Handler]]:
    """The routes by name, or None for a handler of every name; and all handlers."""
    if not _are_routes(handlers):
        return None, [_handler_of("handler", handlers)]
    if not handlers:
        raise SettingsError("handler", {}, "a function, or a mapping with at least one name")
    routes = {name: _handler_of(f"handler[{name!r}]", one) for name, one in handlers.items()}
    return routes, list(routes.values())


def _handler_of(what: str, handler: Any) -> Handler:
    if isinstance(handler, Handler):
        return handler
    return Handler(_check_callable(what, handler))


def _check_callable(what: str, handler: Any) -> HandlerFunction:
    if not callable(handler):
        raise SettingsError(what, handler, "a function that takes a job")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        # Calling it would only make the generator, and the job would count as done.
        raise SettingsError(what, handler, "a function that returns, without `yield`")
    _check_arity(what, handler)
    return handler


def _check_arity(what: str, handler: HandlerFunction) -> None:
    try:
        takes = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # some built-ins have no signature
    try:
        takes.bind(None)
    except TypeError:
        rule = "a function that takes one argument, the job"
        raise SettingsError(what, handler, rule, hint=f"it takes {takes}") from None
