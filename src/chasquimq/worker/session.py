"""Runs a worker session, from the first connection to the last outcome, and reports its health.

How it stops is in `engine.shutdown`; this module decides when, and what the worker says of itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chasquimq.engine.shutdown import to_the_end
from chasquimq.errors import StoreError
from chasquimq.model.json_value import ToDict
from chasquimq.model.log import get_logger
from chasquimq.store.inspect.queue import InspectorStore
from chasquimq.store.net.address import lookup_reason, shown_address
from chasquimq.telemetry.sink import WorkerHealth
from chasquimq.worker.handlers import HandlerSet
from chasquimq.worker.pipeline import ConsumerPipeline, PipelineBuilder

if TYPE_CHECKING:
    from chasquimq.engine.shutdown import Stopping
    from chasquimq.model.delivery import Delivery

logger = get_logger(__name__)
# How many of the jobs that it leaves behind a worker names.
_LEFT_SHOWN_MAX = 5
# What hooks of the last jobs have when the deadline has passed.
_HOOKS_S_MIN = 0.1


class WorkerSession:
    """One run of a worker: starts its pipeline, waits until it shall stop, and ends it."""

    def __init__(
        self,
        builder: PipelineBuilder,
        handlers: HandlerSet,
        stopping: Stopping,
        *,
        server_reason: str = "",
    ) -> None:
        """`server_reason` says why the worker dials this server."""
        self._builder = builder
        self._server_reason = server_reason
        self._began_s = time.monotonic()
        self._hooks = builder.hooks
        self._handlers = handlers
        self._stopping = stopping
        self._last_health = Health()
        self.pipeline: ConsumerPipeline | None = None

    async def run(self, worker: object) -> None:
        """Run until asked to stop; hooks are handed the worker."""
        pipeline = self.pipeline = await self._begin()
        try:
            await self._hooks.startup(worker)
            pipeline.read()
            self._log_start(pipeline)
            await self._stopping.wait()
        finally:
            try:
                await self._end(pipeline, worker)
            finally:
                # Also where it was cancelled on the way: what is over must not look alive.
                self._report_end(pipeline)

    def health(self) -> Health:
        """How it goes now, or how it went when it ended."""
        if self.pipeline is None:
            return self._last_health
        return health_of(self.pipeline, is_stopping=self._stopping.is_asked)

    def _report_end(self, pipeline: ConsumerPipeline) -> None:
        if pipeline.is_reading:
            self._log_end(pipeline)
        self._last_health = replace(self.health(), is_running=False, is_consuming=False)
        self.pipeline = None
        if pipeline.reporter is not None:
            pipeline.reporter.run_once()

    async def is_idle(self, delayed_within_ms: int) -> bool:
        """Whether nothing is ready or running, and nothing delayed falls due that soon."""
        pipeline = self.pipeline
        if pipeline is None or pipeline.in_flight.held_count:
            return False
        inspector = InspectorStore(self._builder.queue, pipeline.store.writes, self._builder.group)
        try:
            return await _is_idle(inspector, delayed_within_ms)
        except StoreError:
            return False  # without an answer it is not known

    def _log_start(self, pipeline: ConsumerPipeline) -> None:
        builder = self._builder
        server = shown_address(builder.connection)
        reason = self._server_reason or lookup_reason(builder.connection)
        why = f" ({reason})" if reason else ""
        concurrency = pipeline.in_flight.running_max
        logger.info(
            "consuming queue %s of %s%s: group %s, concurrency %d, worker %s",
            builder.queue, server, why, builder.group, concurrency, builder.consumer,
            extra={
                "queue": builder.queue, "server": server, "group": builder.group,
                "concurrency": concurrency, "worker": builder.consumer,
            },
        )  # fmt: skip

    def _log_end(self, pipeline: ConsumerPipeline) -> None:
        """The sums of all that `run` did; what was left behind is a warning."""
        counters, builder = pipeline.settlement.counters, self._builder
        left = pipeline.shutdown.left_behind_count
        uptime_s = time.monotonic() - self._began_s
        (logger.warning if left else logger.info)(
            "worker %s of queue %s ended after %s: %d jobs completed, %d runs failed, %d jobs will "
            "be retried, %d are dead, %d were given back, %d left behind%s%s",
            builder.consumer, builder.queue, timedelta(seconds=round(uptime_s)),
            counters.completed, counters.failed, counters.retried, counters.buried,
            counters.handed_back, left, _left_text(pipeline.shutdown.left_behind, left, self._lease_ms),
            _doubt_text(counters.unproven_outcomes + counters.stale_outcomes),
            extra={
                "queue": builder.queue, "worker": builder.consumer,
                **asdict(counters), "left_behind": left, "uptime_s": round(uptime_s, 3),
            },
        )  # fmt: skip

    @property
    def _lease_ms(self) -> int:
        return self._builder.settings.lease.lease_ms

    async def _begin(self) -> ConsumerPipeline:
        try:
            execute = await self._handlers.open(self._builder.context)
            handlers = self._handlers
            pipeline = self._builder.build(execute, handlers.running_max, handlers.policy)
            await pipeline.start()
        except BaseException:
            await self._handlers.close(0)
            raise
        return pipeline

    async def _end(self, pipeline: ConsumerPipeline, worker: object) -> None:
        # A cancelled run has no time to wait for handlers, but still gives back what it holds.
        deadline_s = self._stopping.deadline()
        self._handlers.hurry()
        try:
            was_cancelled = await to_the_end(
                lambda: pipeline.shutdown.run(deadline_s), self._stopping.hurry
            )
            hooks_s = time.monotonic() + _HOOKS_S_MIN
            await self._hooks.calls.settle(lambda: max(deadline_s(), hooks_s))
            # Only what has begun to read was started up, and needs to be shut down.
            if pipeline.is_reading:
                await self._hooks.shutdown(worker)
            if was_cancelled:
                raise asyncio.CancelledError
        finally:
            if self._builder.spans is not None:
                self._builder.spans.close()
            await self._handlers.close(0)


async def _is_idle(inspector: InspectorStore, delayed_within_ms: int) -> bool:
    # Asked before and after: a retry or a promotion may move a job between two looks.
    if await inspector.delayed_due_within(delayed_within_ms):
        return False
    counts = await inspector.counts()
    is_empty = not counts.ready and not counts.running
    return is_empty and not await inspector.delayed_due_within(delayed_within_ms)


def _left_text(left: Sequence[Delivery], count: int, lease_ms: int) -> str:
    if not count:
        return ""
    names = [f"job {one.job_id} ({one.name or 'no name'})" for one in left[:_LEFT_SHOWN_MAX]]
    more = count - len(names)
    shown = ", ".join([*names, *([f"{more:,} more"] if more > 0 else [])])
    return f" and run elsewhere after the lease of {lease_ms / 1000:g} s: {shown}"


def _doubt_text(count: int) -> str:
    return f"; {count:,} more outcomes are in doubt" if count else ""


@dataclass(frozen=True, slots=True)
class Health(ToDict):
    """Totals count since the worker started; `loops_down` names loops failing for over 5 s.

    `is_stalled`: jobs wait here, room to run them is free, and for `stall_after_ms` none started.
    """

    is_running: bool = False
    is_consuming: bool = False
    has_trusted_leases: bool = True
    is_stalled: bool = False
    loops_down: dict[str, str] = field(default_factory=dict)
    waiting: int = 0
    running: int = 0
    unconfirmed: int = 0
    last_read_age_ms: int = 0
    lease_beat_age_ms: int = 0
    oldest_waiting_age_ms: int = 0
    stalled_ms: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    buried: int = 0
    handed_back: int = 0
    stale_outcomes: int = 0
    unproven_outcomes: int = 0
    leases_lost: int = 0

    @property
    def is_ok(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """A sentence for each thing that is wrong; empty while all is well."""
        found: list[str] = []
        if not self.is_consuming:
            found.append("the worker does not read jobs")
        if not self.has_trusted_leases:
            found.append("leases could not be renewed in time, so nothing new is started")
        if self.is_stalled:
            found.append(
                f"{self.waiting} jobs wait and room is free, "
                f"but nothing has started for {self.stalled_ms / 1000:.1f} s"
            )
        return found + [
            f"loop {name} keeps failing: {why}" for name, why in self.loops_down.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """All of it, with the verdict and the problems in front."""
        return {"is_ok": self.is_ok, "problems": self.problems, **ToDict.to_dict(self)}

    @property
    def record(self) -> WorkerHealth:
        """The record of it for metrics sinks."""
        return WorkerHealth(
            is_consuming=self.is_consuming,
            has_trusted_leases=self.has_trusted_leases,
            loops_down=len(self.loops_down),
            waiting=self.waiting,
            running=self.running,
            unconfirmed=self.unconfirmed,
            last_read_age_ms=self.last_read_age_ms,
            lease_beat_age_ms=self.lease_beat_age_ms,
            oldest_waiting_age_ms=self.oldest_waiting_age_ms,
            is_stalled=self.is_stalled,
        )


def health_of(pipeline: ConsumerPipeline, *, is_stopping: bool) -> Health:
    """How a worker is doing whose pipeline runs."""
    in_flight = pipeline.in_flight
    read_age_s = time.monotonic() - pipeline.reader.last_read_s
    return Health(
        is_running=True,
        is_consuming=not is_stopping and pipeline.is_reading and pipeline.store.is_up,
        has_trusted_leases=pipeline.lease.is_trusted,
        is_stalled=not is_stopping and pipeline.runners.is_stalled,
        loops_down=pipeline.supervisor.loops_down,
        waiting=in_flight.waiting_count,
        running=in_flight.running_count,
        unconfirmed=in_flight.unconfirmed_count,
        last_read_age_ms=int(read_age_s * 1000),
        lease_beat_age_ms=pipeline.lease.beat_age_ms,
        oldest_waiting_age_ms=_oldest_age_ms(in_flight.waiting),
        stalled_ms=pipeline.runners.stalled_ms,
        **asdict(pipeline.settlement.counters),
    )


def _oldest_age_ms(waiting: Sequence[Delivery]) -> int:
    try:
        oldest = waiting[0]
    except IndexError:
        return 0
    return (time.monotonic_ns() - oldest.held_since_ns) // 1_000_000
