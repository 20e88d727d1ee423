"""Worker: runs the jobs of one queue until it is closed."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import urlsplit

from chasquimq.engine.job_context import WorkerContext
from chasquimq.engine.shutdown import Stopping, stopped_by_signals
from chasquimq.errors import SettingsError
from chasquimq.job import current_job
from chasquimq.model.job_options import optional_whole, refuse_unknown, shows_options
from chasquimq.settings import (
    MAX_ATTEMPTS,
    WORKER_GROUPS,
    WORKER_KEYWORDS,
    AbilitySettings,
    ConnectionSettings,
    CredentialProvider,
    EventLevel,
    EventSettings,
    HistorySettings,
    LeaseSettings,
    Pool,
    PoolSettings,
    ReadSettings,
    Redact,
    ResultSettings,
    RetrySettings,
    UpkeepSettings,
    WorkerSettings,
    filled,
    given,
    of_kind,
    true_or_false,
)
from chasquimq.store.consumer.decode import encode_result
from chasquimq.store.net.address import connection_settings, redact, url_of
from chasquimq.store.net.connect import wait_for_server
from chasquimq.telemetry.sink import MetricsSink, both_sinks, safe_sink
from chasquimq.telemetry.tracing import Tracing, tracing_of
from chasquimq.wire.keys import check_consumer_id, check_group_name, check_queue_name
from chasquimq.worker.batching import Batch, checked_batch
from chasquimq.worker.handlers import Handlers, HandlerSet
from chasquimq.worker.hooks import HOOK_NAMES, HookRunner, Hooks, JobHook, RunSpans, WorkerHook
from chasquimq.worker.pipeline import PipelineBuilder
from chasquimq.worker.session import Health, WorkerSession

# One that reads more rarely would look dead to workers of other groups.
_READ_BLOCK_MS_MAX = 5_000


class WorkerOptions(TypedDict, total=False):
    """Keywords of a Worker besides those in its signature: most stand for a field of a group."""

    tls: bool
    insecure_tls: bool
    credential_provider: CredentialProvider | None
    # of `retry`
    max_attempts: int
    # of `lease`
    claim_min_idle_ms: int | None
    # of `read`
    read_block_ms: int | None
    read_count: int | None
    max_payload_bytes: int | None
    # of `results`
    store_results: bool
    result_ttl_ms: int | None
    max_result_bytes: int | None
    # of `events` and `history`
    events_enabled: bool
    history_max_bytes: int | None
    # of `pool`
    pool_size: int | None
    # of `hooks`
    on_startup: WorkerHook | None
    on_shutdown: WorkerHook | None
    on_completed: JobHook | None
    on_failed: JobHook | None
    on_dead: JobHook | None
    on_lease_lost: JobHook | None
    # of `upkeep`
    delayed_enabled: bool
    run_scheduler: bool
    scheduler_tick_ms: int | None
    dlq_max_stream_len: int | None
    # of the worker itself
    timeout_ms: int | None
    redact: Redact | None
    keep_tracebacks: bool
    shutdown_deadline_ms: int
    stall_after_ms: int
    abilities: AbilitySettings | None


# What they are where they are left out; those that are missing here are None.
_DEFAULTS: dict[str, Any] = {
    "tls": False, "insecure_tls": False, "max_attempts": MAX_ATTEMPTS, "store_results": False,
    "events_enabled": True, "delayed_enabled": True, "run_scheduler": True,
    "keep_tracebacks": True, "shutdown_deadline_ms": 30_000, "stall_after_ms": 15_000,
}  # fmt: skip
_OWN = ("timeout_ms", "redact", "keep_tracebacks", "shutdown_deadline_ms", "stall_after_ms")


def read_settings(read: ReadSettings | None, options: WorkerOptions) -> ReadSettings:
    """ChasquiMQ (Rust) takes 0 for 1, and blocks for as long as it is asked to."""
    asked = {
        **options,
        "read_count": one_for_zero("read_count", options.get("read_count")),
        "read_block_ms": one_for_zero("read_block_ms", options.get("read_block_ms")),
    }
    settings = filled(
        ReadSettings, "read", read, asked,
        read_count="count", read_block_ms="block_ms", max_payload_bytes="max_payload_bytes",
    )  # fmt: skip
    return replace(settings, block_ms=min(settings.block_ms, _READ_BLOCK_MS_MAX))


def retry_settings(retry: RetrySettings | None, options: WorkerOptions) -> RetrySettings:
    """The waits between runs, and how many runs a job may have."""
    if retry is not None:
        of_kind("retry", retry, RetrySettings, hint="the runs of a job are max_attempts")
    return filled(RetrySettings, "retry", retry, options, max_attempts="max_attempts")


def event_settings(events: EventLevel | EventSettings, options: WorkerOptions) -> EventSettings:
    """ChasquiMQ (Rust) knows only on and off."""
    enabled = options.get("events_enabled", True)
    true_or_false("events_enabled", enabled)
    is_group = isinstance(events, EventSettings)
    group = events if is_group else EventSettings(level=events)
    # A level of "full" that is no group may be the default.
    is_other = group.level == "off" if enabled else is_group or group.level == "terminal"
    if "events_enabled" in options and is_other:
        rule = f"left out where events has level={group.level!r}"
        raise SettingsError("events_enabled", enabled, rule)
    return group if enabled else EventSettings(level="off")


def history_settings(history: bool | HistorySettings, options: WorkerOptions) -> HistorySettings:
    """A bool says whether a history is kept."""
    is_group = isinstance(history, HistorySettings)
    group = history if is_group else given(HistorySettings, is_kept=history)
    return filled(HistorySettings, "history", group, options, history_max_bytes="max_bytes")


def pool_settings(pool: Pool | PoolSettings, options: WorkerOptions) -> PoolSettings:
    """A name says which kind of pool."""
    group = pool if isinstance(pool, PoolSettings) else PoolSettings(kind=pool)
    return filled(PoolSettings, "pool", group, options, pool_size="size")


def upkeep_settings(upkeep: UpkeepSettings | None, options: WorkerOptions) -> UpkeepSettings:
    """ChasquiMQ (Rust) takes a tick of 0 for 1."""
    tick_ms = one_for_zero("scheduler_tick_ms", options.get("scheduler_tick_ms"))
    return filled(
        UpkeepSettings, "upkeep", upkeep, {**options, "scheduler_tick_ms": tick_ms},
        delayed_enabled="delayed_enabled", run_scheduler="run_scheduler",
        scheduler_tick_ms="scheduler_tick_ms", dlq_max_stream_len="dlq_len_max",
    )  # fmt: skip


def consumer_id_of(given_id: str | None) -> str:
    """The name that was given, or one that no other worker has."""
    if given_id is not None:
        return check_consumer_id(given_id)
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def one_for_zero(name: str, number: int | None) -> int | None:
    """What ChasquiMQ (Rust) makes of a 0."""
    return 1 if optional_whole(name, number) == 0 else number


def refuse_other_server(named: ConnectionSettings, other: ConnectionSettings) -> None:
    """Refuse a server that is not the one that a worker names.

    Raises:
        SettingsError: they differ in more than what a credential provider knows.
    """
    if _compared(other) != _compared(named):
        rule = f"{redact(url_of(named))}, which this Worker names"
        hint = "leave it out here, or where the Worker is made"
        raise SettingsError("redis_url", redact(url_of(other)), rule, hint=hint)


def _compared(connection: ConnectionSettings) -> str:
    if connection.credential_provider is None:
        return url_of(connection)
    # Who is asked for user and password need not have them in the URL.
    parts = urlsplit(url_of(connection))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


_IDLE_POLL_S = 0.05


class Worker:
    """Runs jobs of one queue until closed.

    A handler takes a `Job`; returning completes the job, raising fails it. `Handler(function, …)`
    gives one handler attempts, a back-off, a timeout and a pool of its own. `run()` returns
    after `close()`; what has not started by then goes back to the queue at once, uncharged.

    A DLQ longer than `dlq_max_stream_len` is reported once, as a warning, and never trimmed.
    `events` chooses what goes to the events stream; `events_enabled=False` means "off". The
    `history` keeps a row of every finished attempt, the newest within `history_max_bytes`.

    With `batch=(size, wait_ms)` a handler takes a list of jobs, and returns None or an outcome
    for each of them: a value, or an error that fails that one job.
    """

    # How return values become bytes.
    _encode: Callable[[Any], bytes] = staticmethod(encode_result)

    @shows_options(WorkerOptions, **_DEFAULTS)
    def __init__(
        self,
        queue_name: str,
        handler: Handlers,
        *,
        redis_url: str | None = None,
        group: str = "default",
        consumer_id: str | None = None,
        concurrency: int = 100,
        batch: Batch | tuple[int, int] | None = None,
        retry: RetrySettings | None = None,
        lease: LeaseSettings | None = None,
        read: ReadSettings | None = None,
        results: ResultSettings | None = None,
        events: EventLevel | EventSettings = "full",
        history: bool | HistorySettings = True,
        pool: Pool | PoolSettings = "thread",
        hooks: Hooks | None = None,
        upkeep: UpkeepSettings | None = None,
        metrics: MetricsSink | None = None,
        tracing: bool | Tracing = False,
        **options: Unpack[WorkerOptions],
    ) -> None:
        """A keyword that stands for a field of a group may be given instead of the group.

        Raises:
            SettingsError: a value is refused, or a keyword and its group say the same field.
            TypeError: there is no such keyword.
        """
        refuse_unknown(Worker, options, WorkerOptions, WORKER_GROUPS, WORKER_KEYWORDS)
        self.name = check_queue_name(queue_name)
        self.group = check_group_name(group)
        self.consumer_id = consumer_id_of(consumer_id)
        self.state: dict[str, Any] = {}
        self._context = WorkerContext(self.state)
        connect = partial(
            connection_settings, tls=options.get("tls", False), queue=self.name,
            insecure_tls=options.get("insecure_tls", False),
            credential_provider=options.get("credential_provider"),
        )  # fmt: skip
        self._connect: Callable[[str | None], ConnectionSettings] = connect
        self._connection = connect(redis_url)
        self._named = None if redis_url is None else self._connection
        self._server_reason = ""  # why this one, where a command chose it
        own: dict[str, Any] = {name: one for name, one in options.items() if name in _OWN}
        self._settings = WorkerSettings(
            concurrency=concurrency,
            read=read_settings(read, options),
            lease=filled(LeaseSettings, "lease", lease, options, claim_min_idle_ms="lease_ms"),
            retry=retry_settings(retry, options),
            results=filled(
                ResultSettings, "results", results, options,
                store_results="is_stored", result_ttl_ms="ttl_ms", max_result_bytes="max_bytes",
            ),
            events=event_settings(events, options),
            history=history_settings(history, options),
            pool=pool_settings(pool, options),
            upkeep=upkeep_settings(upkeep, options),
            abilities=filled(AbilitySettings, "abilities", options.get("abilities"), {}),
            **own,
        )  # fmt: skip
        self._handlers = HandlerSet(
            handler, self._settings, checked_batch(batch, concurrency, self._settings.timeout_ms)
        )
        called = filled(Hooks, "hooks", hooks, options, **{name: name for name in HOOK_NAMES})
        self._hooks = HookRunner(
            called, self._context, lambda: f"worker {self.consumer_id} of queue {self.name}"
        )
        self._sink: MetricsSink | None = safe_sink(metrics)
        self._tracing = tracing_of(tracing)
        self._stopping = Stopping(self._settings.shutdown_deadline_ms)
        self._session: WorkerSession | None = None
        self._finished: asyncio.Future[None] | None = None
        self._run_task: asyncio.Task[Any] | None = None

    @property
    def is_running(self) -> bool:
        return self._session is not None and self._session.pipeline is not None

    @property
    def is_closed(self) -> bool:
        return self._stopping.is_asked

    @property
    def named_url(self) -> str | None:
        """The server that it was made with, password and all; None: no URL was given."""
        return self._named and self._named.url

    def use_server(self, redis_url: str, *, reason: str = "") -> None:
        """Dial this server where none was named; to be said before `run`.

        The log gives the `reason` beside the address.

        Raises:
            SettingsError: the worker names another one.
        """
        chosen = self._connect(redis_url)
        if self._named is not None:
            refuse_other_server(self._named, chosen)
        self._connection, self._server_reason = chosen, reason

    @property
    def shutdown_deadline_ms(self) -> int:
        """How long running jobs may go on once it is asked to stop."""
        return self._settings.shutdown_deadline_ms

    def use_process_options(
        self,
        *,
        metrics: MetricsSink | None = None,
        tracing: bool | Tracing = False,
        shutdown_deadline_ms: int | None = None,
    ) -> None:
        """Take what belongs to the process around it; to be said before `run`.

        The sink gets every record, like the worker's own. A worker that opens spans already
        keeps its tracer. The deadline replaces its own.

        Raises:
            SettingsError: one of them cannot be had.
        """
        if metrics is not None:
            self._sink = both_sinks(self._sink, metrics)
        if self._tracing is None:
            self._tracing = tracing_of(tracing)
        if shutdown_deadline_ms is not None:
            self._settings = replace(self._settings, shutdown_deadline_ms=shutdown_deadline_ms)
            self._stopping.set_deadline(shutdown_deadline_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, *, handle_signals: bool = False, wait_for_server_ms: float = 0) -> None:
        """Run until closed; a second call joins the first.

        With `handle_signals` the first SIGINT or SIGTERM begins to stop, the second gives back
        whatever still runs. A server that is not there is waited for, for `wait_for_server_ms`;
        `math.inf` is for ever.
        """
        if self._finished is not None:
            await asyncio.shield(self._finished)
            return
        if self.is_closed:
            return
        self._finished = asyncio.get_running_loop().create_future()
        self._run_task = asyncio.current_task()
        try:
            with stopped_by_signals(self.request_stop) if handle_signals else nullcontext():
                if wait_for_server_ms and not await self.wait_for_server(wait_for_server_ms):
                    return
                self._session = WorkerSession(
                    self._builder(), self._handlers, self._stopping,
                    server_reason=self._server_reason,
                )  # fmt: skip
                await self._session.run(self)
        finally:
            self._finished.set_result(None)

    async def wait_for_server(self, patience_ms: float = math.inf) -> bool:
        """Wait until the server answers; False when the worker was asked to stop before.

        Raises:
            ServerUnreachable: it did not within `patience_ms`.
            ServerRefused: it does not take the credentials, which no wait would change.
        """
        return await wait_for_server(self._connection, patience_ms, self._stopping.wait())

    async def close(self) -> None:
        """Stop: read nothing more, give back jobs that have not started, wait for those that have.

        Returns when `run()` has ended, at the latest one second after the deadline;
        at once when called by a handler or a hook of this worker.
        """
        if not self.is_closed:  # two callers who close are no more urgent than one
            self.request_stop()
        is_inside = current_job() is not None or asyncio.current_task() is self._run_task
        if self._finished is not None and not is_inside:
            await asyncio.shield(self._finished)

    def request_stop(self) -> None:
        """Begin to stop and return at once; the second time, give back whatever runs too."""
        self._stopping.ask()

    async def run_until_idle(self, *, delayed_within_ms: int = 5_000) -> None:
        """Run until nothing is ready or running, and nothing delayed falls due that soon."""
        running = asyncio.ensure_future(self.run())
        try:
            while not running.done() and not await self._is_idle(delayed_within_ms):
                await asyncio.wait([running], timeout=_IDLE_POLL_S)
        finally:
            self.request_stop()
            await running

    def health(self) -> Health:
        """How the worker is doing now, or how it was doing when it stopped."""
        return Health() if self._session is None else self._session.health()

    async def _is_idle(self, delayed_within_ms: int) -> bool:
        return self._session is not None and await self._session.is_idle(delayed_within_ms)

    def _run_spans(self) -> RunSpans | None:
        if self._tracing is None:
            return None
        return RunSpans(self._tracing, self.name, self.group, self.consumer_id)

    def _builder(self) -> PipelineBuilder:
        self._context.state = self.state
        return PipelineBuilder(
            queue=self.name,
            group=self.group,
            consumer=self.consumer_id,
            connection=self._connection,
            settings=self._settings,
            hooks=self._hooks,
            sink=self._sink,
            spans=self._run_spans(),
            health=lambda: self.health().record,
            context=self._context,
            encode=self._encode,
            handler_names=self._handlers.names,
        )
