"""Worker: a handler and settings become a running pipeline."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Any, Self

from chasquimq.assembly import Assembly
from chasquimq.batching import Batch, checked_batch
from chasquimq.engine.pipeline import Pipeline
from chasquimq.errors import StoreError
from chasquimq.handlers import Handler, Handlers, HandlerSet
from chasquimq.health import Health
from chasquimq.hooks import Hooks, JobHook, WorkerHook
from chasquimq.job import current_job
from chasquimq.run_spans import RunSpans
from chasquimq.settings import (
    DEFAULT_URL,
    MAX_ATTEMPTS,
    AbilitySettings,
    ConnectionSettings,
    CredentialProvider,
    EventLevel,
    EventSettings,
    HistorySettings,
    LeaseSettings,
    Pool,
    ReadSettings,
    Redact,
    ResultSettings,
    RetrySettings,
    UpkeepSettings,
    WorkerSettings,
    given,
)
from chasquimq.store.address import normal_url
from chasquimq.store.inspecting import InspectorStore
from chasquimq.store.payloads import encode
from chasquimq.telemetry.dispatch import SafeSink
from chasquimq.telemetry.sink import MetricsSink, is_noop
from chasquimq.telemetry.tracing import Tracing, tracing_of
from chasquimq.wire.names import check_group_name, check_queue_name

__all__ = ["CredentialProvider", "Handler", "Worker"]

logger = logging.getLogger(__name__)
_IDLE_POLL_S = 0.05
# What hooks of the last jobs have when the deadline has passed.
_HOOKS_S_MIN = 0.1
_READ_BLOCK_MS_MAX = 500


class Worker:
    """Runs jobs of one queue until closed.

    A handler takes a `Job`; returning completes the job, raising fails it. `run()` returns
    after `close()`; what has not started by then goes back to the queue at once, uncharged.

    A DLQ longer than `dlq_max_stream_len` is reported once, as a warning, and never trimmed.
    `events` chooses what goes to the events stream; `events_enabled=False` means "off". The
    `history` keeps a row of every finished attempt, the newest within `history_max_bytes`.

    With `batch=(size, wait_ms)` a handler takes a list of jobs, and returns None or an outcome
    for each of them: a value, or an error that fails that one job.
    """

    # How return values become bytes.
    _encode: Callable[[Any], bytes] = staticmethod(encode)

    def __init__(
        self,
        queue_name: str,
        handler: Handlers,
        *,
        redis_url: str = DEFAULT_URL,
        tls: bool = False,
        concurrency: int = 100,
        max_attempts: int = MAX_ATTEMPTS,
        group: str = "default",
        consumer_id: str | None = None,
        read_block_ms: int | None = None,
        read_count: int | None = None,
        claim_min_idle_ms: int | None = None,
        max_payload_bytes: int | None = None,
        dlq_max_stream_len: int | None = None,
        events_enabled: bool = True,
        events: EventLevel = "full",
        history: bool = True,
        history_max_bytes: int | None = None,
        metrics: MetricsSink | None = None,
        tracing: bool | Tracing = False,
        delayed_enabled: bool = True,
        run_scheduler: bool = True,
        scheduler_tick_ms: int | None = None,
        store_results: bool = False,
        result_ttl_ms: int | None = None,
        max_result_bytes: int | None = None,
        credential_provider: CredentialProvider | None = None,
        pool: Pool = "thread",
        pool_size: int | None = None,
        timeout_ms: int | None = None,
        batch: Batch | tuple[int, int] | None = None,
        redact: Redact | None = None,
        shutdown_deadline_ms: int = 30_000,
        insecure_tls: bool = False,
        retry: RetrySettings | None = None,
        abilities: AbilitySettings | None = None,
        on_startup: WorkerHook | None = None,
        on_shutdown: WorkerHook | None = None,
        on_completed: JobHook | None = None,
        on_failed: JobHook | None = None,
        on_dead: JobHook | None = None,
        on_lease_lost: JobHook | None = None,
    ) -> None:
        self.name = check_queue_name(queue_name)
        self.group = check_group_name(group)
        self.consumer_id = consumer_id or _consumer_name()
        self.state: dict[str, Any] = {}
        self._connection = ConnectionSettings(
            url=normal_url(redis_url, tls=tls),
            insecure_tls=insecure_tls,
            credential_provider=credential_provider,
            queue=self.name,
        )
        self._settings = WorkerSettings(
            concurrency=concurrency,
            pool=pool,
            pool_size=pool_size,
            timeout_ms=timeout_ms,
            redact=redact,
            shutdown_deadline_ms=shutdown_deadline_ms,
            read=given(
                ReadSettings,
                count=1 if read_count == 0 else read_count,
                block_ms=None if read_block_ms is None
                else min(read_block_ms, _READ_BLOCK_MS_MAX) or 1,
                max_payload_bytes=max_payload_bytes,
            ),
            lease=given(LeaseSettings, lease_ms=claim_min_idle_ms),
            retry=_retry_settings(retry, max_attempts),
            results=given(
                ResultSettings,
                is_stored=store_results, ttl_ms=result_ttl_ms, max_bytes=max_result_bytes,
            ),
            events=EventSettings(level=events if events_enabled else "off"),
            history=given(HistorySettings, is_kept=history, max_bytes=history_max_bytes),
            upkeep=given(
                UpkeepSettings,
                delayed_enabled=delayed_enabled,
                run_scheduler=run_scheduler,
                scheduler_tick_ms=1 if scheduler_tick_ms == 0 else scheduler_tick_ms,
                dlq_len_max=dlq_max_stream_len,
            ),
            abilities=abilities or AbilitySettings(),
        )  # fmt: skip
        self._handlers = HandlerSet(
            handler, self._settings, checked_batch(batch, concurrency, timeout_ms)
        )
        self._hooks = Hooks(
            on_startup=on_startup, on_shutdown=on_shutdown, on_completed=on_completed,
            on_failed=on_failed, on_dead=on_dead, on_lease_lost=on_lease_lost,
        )  # fmt: skip
        # A sink that listens to nothing costs nothing.
        self._sink = None if metrics is None or is_noop(metrics) else SafeSink(metrics)
        self._spans = self._run_spans(tracing_of(tracing))
        self._pipeline: Pipeline | None = None
        self._is_closed = False
        self._is_urgent = False
        self._closing = asyncio.Event()
        self._finished: asyncio.Future[None] | None = None
        self._run_task: asyncio.Task[Any] | None = None
        self._deadline_s: float | None = None
        self._last_health = Health()

    @property
    def is_running(self) -> bool:
        return self._pipeline is not None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, *, handle_signals: bool = False) -> None:
        """Run until closed; a second call joins the first.

        With `handle_signals` the first SIGINT or SIGTERM begins to stop, the second gives back
        whatever still runs.
        """
        if self._finished is not None:
            await asyncio.shield(self._finished)
            return
        if self._is_closed:
            return
        self._finished = asyncio.get_running_loop().create_future()
        self._run_task = asyncio.current_task()
        try:
            with self._signals() if handle_signals else nullcontext():
                await self._run()
        finally:
            self._finished.set_result(None)

    async def close(self) -> None:
        """Stop: read nothing more, hand back what has not started, wait for what has.

        Returns when `run()` has ended, at the latest one second after the deadline;
        at once when called by a handler or a hook of this worker.
        """
        # Two callers who close are no more urgent than one.
        if not self._is_closed:
            self.request_stop()
        is_inside = current_job() is not None or asyncio.current_task() is self._run_task
        if self._finished is not None and not is_inside:
            await asyncio.shield(self._finished)

    def request_stop(self) -> None:
        """Begin to stop and return at once; the second time, give back whatever runs too."""
        now_s = time.monotonic()
        if self._is_closed:
            self._is_urgent = True
            self._deadline_s = now_s
        else:
            self._deadline_s = now_s + self._settings.shutdown_deadline_ms / 1000
        self._is_closed = True
        self._closing.set()

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
        pipeline = self._pipeline
        if pipeline is None:
            return self._last_health
        holdings = pipeline.holdings
        read_age_s = time.monotonic() - pipeline.reader.last_read_s
        return Health(
            is_running=True,
            is_consuming=not self._is_closed and pipeline.is_reading and pipeline.store.is_up,
            has_trusted_leases=pipeline.lease.is_trusted,
            loops_down=pipeline.supervisor.loops_down,
            waiting=len(holdings.waiting),
            running=holdings.running_count,
            unconfirmed=holdings.unconfirmed_count,
            last_read_age_ms=int(read_age_s * 1000),
            lease_beat_age_ms=pipeline.lease.beat_age_ms,
            **asdict(pipeline.outcomes.counters),
        )

    async def _run(self) -> None:
        try:
            execute = await self._handlers.open()
            pipeline = self._assembly().pipeline(execute, self._handlers.running_max)
            await pipeline.start()
        except BaseException:
            await self._handlers.close(0)
            raise
        self._pipeline = pipeline
        try:
            await self._hooks.startup(self)
            pipeline.read()
            await self._closing.wait()
        finally:
            await self._stop(pipeline)
            self._last_health = replace(self.health(), is_running=False, is_consuming=False)
            self._pipeline = None
            if pipeline.reporter is not None:
                pipeline.reporter.run_once()

    @contextmanager
    def _signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _stop(self, pipeline: Pipeline) -> None:
        # A cancelled run has no time to wait for handlers, but still gives back what it holds.
        deadline_s = self._deadline_s if self._deadline_s is not None else time.monotonic()
        self._handlers.hurry()
        try:
            await pipeline.stop(lambda: self._deadline_s or deadline_s)
            hooks_s = time.monotonic() + _HOOKS_S_MIN
            await self._hooks.calls.settle(lambda: max(self._deadline_s or deadline_s, hooks_s))
            # Only what has begun to read was started up, and needs to be shut down.
            if pipeline.is_reading:
                await self._hooks.shutdown(self)
        finally:
            if self._spans is not None:
                self._spans.close()
            await self._handlers.close(0)

    def _run_spans(self, tracing: Tracing | None) -> RunSpans | None:
        if tracing is None:
            return None
        return RunSpans(tracing, self.name, self.group, self.consumer_id)

    def _assembly(self) -> Assembly:
        return Assembly(
            queue=self.name,
            group=self.group,
            consumer=self.consumer_id,
            connection=self._connection,
            settings=self._settings,
            hooks=self._hooks,
            sink=self._sink,
            spans=self._spans,
            health=lambda: self.health().record,
            state=self.state,
            encode=self._encode,
        )

    async def _is_idle(self, delayed_within_ms: int) -> bool:
        pipeline = self._pipeline
        if pipeline is None or pipeline.holdings.held_count:
            return False
        inspector = InspectorStore(self.name, pipeline.store.writes, self.group)
        try:
            # Asked before and after: a retry or a promotion may move a job between two looks.
            if await inspector.delayed_due_within(delayed_within_ms):
                return False
            counts = await inspector.counts()
            is_empty = not counts.ready and not counts.running
            return is_empty and not await inspector.delayed_due_within(delayed_within_ms)
        except StoreError:
            return False  # who cannot look cannot tell


def _retry_settings(retry: RetrySettings | None, max_attempts: int) -> RetrySettings:
    """An explicit `max_attempts` wins over the one in `retry`."""
    if retry is not None and max_attempts == MAX_ATTEMPTS:
        return retry
    return replace(retry or RetrySettings(), max_attempts=max_attempts)


def _consumer_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
