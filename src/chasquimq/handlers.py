"""Handlers of any kind become one: a coroutine function of a job."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from chasquimq.batching import Batch, Batcher
from chasquimq.engine.process_pool import ProcessPool
from chasquimq.engine.thread_pool import ThreadPool
from chasquimq.errors import SettingsError
from chasquimq.job import DeliveredJob, Job
from chasquimq.model.verdict import UnknownName

if TYPE_CHECKING:
    from chasquimq.settings import WorkerSettings

# Of one job, or with `batch` of many.
Handler = Callable[[Any], Awaitable[Any]] | Callable[[Any], Any]
Handlers = Handler | Mapping[str, Handler]
_Async = Callable[[Any], Awaitable[Any]]


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
        self._refuse_timeout_in_threads()
        self._refuse_batches_in_processes()

    @property
    def running_max(self) -> int:
        """How many jobs may start at once: none should wait for its thread or process."""
        if self._batch or any(_is_async(handler) for handler in self._all):
            return self._settings.concurrency
        return self._pool_size

    async def open(self) -> _Async:
        """Start the pools that are needed; the answer takes any job of this worker."""
        if self._settings.pool == "process" and self._has_sync:
            self._processes = ProcessPool(self._sync, self._pool_size)
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

    @property
    def _has_sync(self) -> bool:
        return not all(_is_async(handler) for handler in self._all)

    @property
    def _sync(self) -> Handlers:
        if self._routes is None:
            return self._all[0]
        return {name: one for name, one in self._routes.items() if not _is_async(one)}

    @property
    def _pool_size(self) -> int:
        wanted = self._settings.pool_size
        if wanted is None and self._settings.pool == "process":
            # More children than cores only take turns, and each of them costs its imports.
            wanted = os.cpu_count() or 1
        return min(wanted or self._settings.concurrency, self._settings.concurrency)

    def _awaitable(self, handler: Handler) -> _Async:
        call = self._call(handler)
        if self._batch is None:
            return call
        if self._batch.form == "arrow":
            call = _with_tables(call)
        batcher = Batcher(
            call, self._batch,
            timeout_ms=self._settings.timeout_ms, is_unstoppable=not _is_async(handler),
        )  # fmt: skip
        self._batchers.append(batcher)
        return batcher

    def _call(self, handler: Handler) -> _Async:
        if _is_async(handler):
            return handler
        if self._processes is not None:
            return self._in_process
        if self._threads is None:
            self._threads = ThreadPool(self._pool_size, "chasqui-handler")
        return _in_thread(self._threads, handler)

    def _refuse_batches_in_processes(self) -> None:
        if self._batch and self._settings.pool == "process" and self._has_sync:
            raise SettingsError(
                "pool", "process", '"thread" for a `def` handler of batches',
                hint="only single jobs go to other processes; or use an `async def` handler",
            )  # fmt: skip

    async def _in_process(self, job: DeliveredJob) -> Any:
        assert self._processes is not None, "the pool is opened before the first job"
        delivery = job.delivery
        delivery.has_own_timer = True
        timeout_ms = delivery.timeout_ms(self._settings.timeout_ms)
        return await self._processes.run(job.name, job.values(), timeout_ms)

    def _refuse_timeout_in_threads(self) -> None:
        needs_process = self._settings.timeout_ms is not None and self._has_sync
        if needs_process and self._settings.pool == "thread":
            # Batches do not go to other processes.
            remedy = "use " if self._batch else 'use pool="process" or '
            raise SettingsError(
                "timeout_ms", self._settings.timeout_ms, "unset for a `def` handler in a thread",
                hint=f"a thread cannot be stopped; {remedy}an `async def` handler",
            )  # fmt: skip


def _with_tables(call: _Async) -> _Async:
    from chasquimq.batch_tables import refuse_missing_arrow, with_tables

    refuse_missing_arrow()
    return with_tables(call)


def _in_thread(pool: ThreadPool, handler: Handler) -> _Async:
    async def run(job: Any) -> Any:
        if isinstance(job, DeliveredJob):
            job.delivery.is_unstoppable = True
        value = await pool.run(handler, job)
        # A plain function around a coroutine function only makes the coroutine.
        return await value if inspect.isawaitable(value) else value

    return run


def _router(routes: Mapping[str, _Async]) -> _Async:
    def route(job: Job) -> Awaitable[Any]:
        handler = routes.get(job.name)
        if handler is None:
            raise UnknownName(f"no handler has the name {job.name!r}")
        return handler(job)

    return route


def _are_routes(handlers: Handlers) -> TypeGuard[Mapping[str, Handler]]:
    return isinstance(handlers, Mapping)


def _is_async(handler: Handler) -> bool:
    if inspect.iscoroutinefunction(handler):
        return True
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _checked(handlers: Handlers) -> tuple[dict[str, Handler] | None, list[Handler]]:
    """The routes by name, or None for a handler of every name; and all handlers."""
    if not _are_routes(handlers):
        return None, [_check_callable("handler", handlers)]
    if not handlers:
        raise SettingsError("handler", {}, "a function, or a mapping with at least one name")
    routes = {name: _check_callable(f"handler[{name!r}]", one) for name, one in handlers.items()}
    return routes, list(routes.values())


def _check_callable(what: str, handler: Any) -> Handler:
    if not callable(handler):
        raise SettingsError(what, handler, "a function that takes a job")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        # Calling it would only make the generator, and the job would count as done.
        raise SettingsError(what, handler, "a function that returns, without `yield`")
    _check_arity(what, handler)
    return handler


def _check_arity(what: str, handler: Handler) -> None:
    try:
        takes = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # some built-ins do not tell
    try:
        takes.bind(None)
    except TypeError:
        rule = "a function that takes one argument, the job"
        raise SettingsError(what, handler, rule, hint=f"it takes {takes}") from None
