"""Builds the pipeline of a worker: its stores, its loops, and the listeners to outcomes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chasquimq.engine.delivery_count import DeliveryCounts, Requeue, SuspectRequeuer
from chasquimq.engine.event_publisher import EventPublisher
from chasquimq.engine.history_recorder import HistoryRecorder
from chasquimq.engine.in_flight import InFlight
from chasquimq.engine.job_context import WorkerContext
from chasquimq.engine.lease import Lease, LeaseAlarm, StallDetector
from chasquimq.engine.listeners import Listener, combine
from chasquimq.engine.metrics_listener import HealthReporter, Loss, MetricsListener
from chasquimq.engine.reader import BUSY_BLOCK_MS_MAX, Claimer, Intake, Reader
from chasquimq.engine.runner import Begin, Runners, begin_with
from chasquimq.engine.settlement import Settlement
from chasquimq.engine.shutdown import Shutdown
from chasquimq.engine.supervisor import ClockSync, Supervisor
from chasquimq.engine.upkeep import UpkeepLoops
from chasquimq.job import DeliveredJob, enter_job
from chasquimq.model.retry import RetryPolicy
from chasquimq.model.snapshot import WorkerRecord, bounded_handlers, record_ttl_ms
from chasquimq.model.version import __version__
from chasquimq.settings import ConnectionSettings, WorkerSettings
from chasquimq.store.consumer.lease import LeaseStore
from chasquimq.store.consumer.store import ConsumerStore
from chasquimq.store.events import EventStore
from chasquimq.store.history import HistoryStore
from chasquimq.store.net.abilities import EVENTS, HISTORY, upkeep_roles
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.repeatables import FiringStore
from chasquimq.store.upkeep import JanitorStore, UpkeepStore
from chasquimq.telemetry.sink import MetricsSink, WorkerHealth
from chasquimq.worker.hooks import HookRunner, RunSpans

if TYPE_CHECKING:
    from chasquimq.engine.supervisor import Loop
    from chasquimq.model.delivery import Delivery

Execute = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBuilder:
    """Everything a pipeline is made from, but for the handler."""

    queue: str
    group: str
    consumer: str
    connection: ConnectionSettings
    settings: WorkerSettings
    hooks: HookRunner
    sink: MetricsSink | None
    spans: RunSpans | None
    health: Callable[[], WorkerHealth]
    context: WorkerContext
    encode: Callable[[Any], bytes]
    # None: one handler for every name.
    handler_names: Sequence[str] | None = None

    @property
    def subject(self) -> str:
        """Which worker it is, as the log says it."""
        return f"worker {self.consumer} of queue {self.queue}"

    def build(self, execute: Execute, concurrency: int, policy: RetryPolicy) -> ConsumerPipeline:
        """A pipeline that is not running yet; call it inside the loop that will run it."""
        settings = replace(self.settings, concurrency=concurrency)
        store = self._store()
        events, history_recorder = self._events(store), self._history_recorder(store)
        upkeep = UpkeepStore(
            self.queue, store.writes,
            bell=ReconnectingConnection(self.connection, name="chasqui-bell", waits_for_login=True),
            waiting_events_max=settings.events.waiting_max,
        )  # fmt: skip
        return ConsumerPipeline(
            store,
            self._lease_store(store, concurrency),
            self._upkeep(upkeep, store),
            self._begin(execute),
            settings,
            policy,
            subject=self.subject,
            encode=self.encode,
            listener=combine(self._listeners(store, events, history_recorder), self.subject),
            history_recorder=history_recorder,
            reporter=self._reporter(store, _losses(events, upkeep, history_recorder)),
            context=self.context,
            on_lease_lost=self.hooks.lease_lost(),
        )

    def _store(self) -> ConsumerStore:
        settings = self.settings
        wished = [] if settings.events.level == "off" else [EVENTS]
        wished += [HISTORY] if settings.history.is_kept else []
        return ConsumerStore(
            self.queue, self.group, self.consumer, self.connection,
            settings.read, settings.abilities, settings.lease.lease_ms, settings.results,
            beside=upkeep_roles(settings.upkeep), wished=wished,
        )  # fmt: skip

    def _lease_store(self, store: ConsumerStore, concurrency: int) -> LeaseStore:
        lease = self.settings.lease
        return LeaseStore(
            self.queue, self.group, self.consumer, self.connection, lease.beat_ms,
            record=lambda: self._record(int(store.clock.now_ms()), concurrency),
            record_ms=lease.record_ms,
        )  # fmt: skip

    def _record(self, started_at_ms: int, concurrency: int) -> WorkerRecord:
        lease_ms = self.settings.lease.lease_ms
        handlers, left_out = bounded_handlers(self.handler_names or ())
        return WorkerRecord(
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=(self.queue,),
            group=self.group,
            concurrency=concurrency,
            lease_ms=lease_ms,
            ttl_ms=record_ttl_ms(lease_ms),
            started_at_ms=started_at_ms,
            handlers=handlers,
            handlers_left_out=left_out,
            handles_all=self.handler_names is None,
            supports=tuple(_supported(self.settings)),
        )

    def _upkeep(self, upkeep: UpkeepStore, store: ConsumerStore) -> UpkeepLoops:
        return UpkeepLoops(
            upkeep,
            FiringStore(self.queue, store.writes),
            JanitorStore(self.queue, self.group, store.writes),
            self.consumer,
            self.settings.upkeep,
            self.sink,
        )

    def _history_recorder(self, store: ConsumerStore) -> HistoryRecorder | None:
        history = self.settings.history
        if not history.is_kept:
            return None
        return HistoryRecorder(
            HistoryStore(self.queue, self.consumer, history.max_bytes, store.writes, store.clock),
            self.subject,
        )

    def _events(self, store: ConsumerStore) -> EventStore | None:
        events = self.settings.events
        if events.level == "off":
            return None
        return EventStore(self.queue, self.consumer, events.max_stream_len, store.writes)

    def _reporter(self, store: ConsumerStore, losses: list[Loss]) -> HealthReporter | None:
        if self.sink is None or not HealthReporter.is_used_by(self.sink):
            return None
        return HealthReporter(self.sink, self.health, losses, lambda: store.regroup_count)

    def _listeners(
        self,
        store: ConsumerStore,
        events: EventStore | None,
        history_recorder: HistoryRecorder | None,
    ) -> list[Listener]:
        listeners: list[Listener] = [] if history_recorder is None else [history_recorder]
        if events is not None:
            has_starts = self.settings.events.level == "full"
            listeners.append(EventPublisher(events, self.subject, has_starts=has_starts))
        if self.sink is not None and MetricsListener.is_used_by(self.sink):
            listeners.append(MetricsListener(self.sink, store.clock.at_ms))
        if self.spans is not None:
            listeners.append(self.spans)
        return [*listeners, *self.hooks.listeners()]

    def _begin(self, execute: Execute) -> Begin:
        begin = begin_with(DeliveredJob, self.context, enter_job, execute)
        return begin if self.spans is None else self.spans.around(begin)


def _supported(settings: WorkerSettings) -> Iterator[str]:
    """What a worker does beside its jobs, in the words of its record."""
    yield from ["delayed"] if settings.upkeep.delayed_enabled else []
    yield from ["repeatable"] if settings.upkeep.run_scheduler else []
    yield from ["results"] if settings.results.is_stored else []
    yield from ["history"] if settings.history.is_kept else []
    yield from ["events"] if settings.events.level != "off" else []


def _losses(
    events: EventStore | None, upkeep: UpkeepStore, history_recorder: HistoryRecorder | None
) -> list[Loss]:
    losses: list[Loss] = [("events", lambda: upkeep.dropped_count)]
    if events is not None:
        losses.append(("events", lambda: events.dropped_count))
        losses.append(("events_unproven", lambda: events.unproven_count))
    if history_recorder is not None:
        losses.append(("history", lambda: history_recorder.dropped_count))
    return losses


class ConsumerPipeline:
    """Holds the parts of one running consumer, and starts them; `shutdown` stops them."""

    def __init__(
        self,
        store: ConsumerStore,
        lease_store: LeaseStore,
        upkeep: UpkeepLoops,
        begin: Begin,
        settings: WorkerSettings,
        policy: RetryPolicy,
        *,
        subject: str,
        encode: Callable[[Any], bytes],
        listener: Listener | None,
        history_recorder: HistoryRecorder | None,
        reporter: HealthReporter | None,
        context: WorkerContext,
        on_lease_lost: Callable[[Delivery], None] | None,
    ) -> None:
        self.is_reading = False
        self._settings = settings
        self.store = store
        self.upkeep = upkeep
        self.reporter = reporter
        self._history_recorder = history_recorder
        self._policy = policy
        self._clock_sync = ClockSync(store)
        self.supervisor = Supervisor(subject)
        self.in_flight = InFlight(settings.concurrency, settings.read, policy.max_attempts_of)
        self.settlement = Settlement(
            store, self.in_flight, self._policy, settings, encode=encode, listener=listener
        )
        self._requeue = Requeue(store, self.in_flight, self.settlement.counters)
        self._requeuer = SuspectRequeuer(self.in_flight.suspects, self._requeue)
        self._delivery_counts = DeliveryCounts(
            store, self.in_flight, settings.lease.uncharge_after_ms
        )
        self.runners = Runners(
            self.in_flight, begin, self.settlement, self.supervisor,
            policy=policy, delivery_counts=self._delivery_counts,
            stall_after_ms=settings.stall_after_ms,
        )  # fmt: skip
        self.lease = self._new_lease(lease_store, context, on_lease_lost)
        self._stall_detector = self.lease.stall_detector = StallDetector(
            self.in_flight, self.lease, self.runners, subject
        )
        self.reader = self._new_reader()
        self.upkeep.watch_idleness(lambda: self.reader.can_be_woken)
        self.shutdown = self._new_shutdown()

    async def start(self) -> None:
        """Connect, then start every loop but the reader."""
        try:
            await self.store.open()
        except BaseException:
            await self.store.close()
            raise
        if self._settings.lease.enabled:
            self.lease.start()
        for loop in self._loops():
            self.supervisor.start(loop)

    def read(self) -> None:
        """Let jobs in."""
        self.is_reading = True
        self.supervisor.start(self.reader)

    def _loops(self) -> list[Loop]:
        loops: list[Loop] = [
            self._stall_detector,
            *self.settlement.loops,
            self._delivery_counts,
            self._clock_sync,
            self._requeuer,
        ]
        loops += [loop for loop in (self._history_recorder, self.reporter) if loop is not None]
        return [*loops, *self.upkeep.loops]

    def _new_lease(
        self,
        store: LeaseStore,
        context: WorkerContext,
        on_lost: Callable[[Delivery], None] | None,
    ) -> Lease:
        alarm = LeaseAlarm(
            asyncio.get_running_loop(), self.settlement, self.runners, context, on_lost
        )
        return Lease(store, self.in_flight, self._settings.lease, alarm, self.store)

    def _new_reader(self) -> Reader:
        intake = Intake(
            self.settlement, self.runners, self._policy, self.store.clock, self._delivery_counts
        )
        claimer = Claimer(self.store, self._settings.lease.lease_ms)
        return Reader(
            self.store, self.in_flight, intake, claimer, self._stall_detector,
            requeue=self._requeue, upkeep=self.upkeep, settlement=self.settlement,
            block_ms=self._idle_block_ms,
        )  # fmt: skip

    def _new_shutdown(self) -> Shutdown:
        return Shutdown(
            self.store, self.in_flight, self.supervisor, self.settlement, self.runners, self.lease,
            requeue=self._requeue, upkeep=self.upkeep,
            stop_first=(self.reader, self._delivery_counts, self._requeuer, self._clock_sync),
            history_recorder=self._history_recorder,
        )  # fmt: skip

    @property
    def _idle_block_ms(self) -> int:
        """A worker that has sent nothing for a lease looks dead, also while it waits."""
        return min(
            self._settings.read.block_ms, max(BUSY_BLOCK_MS_MAX, self._settings.lease.beat_ms)
        )
