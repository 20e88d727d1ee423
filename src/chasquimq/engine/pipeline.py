"""Puts the parts of a running consumer together, starts them, and stops them in order.

To stop: read nothing more, give back what has not started, wait for what has, send what is finished,
leave. Each step is taken on its own, so that one which fails costs no other, and each has a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from chasquimq.engine.delivery_count import DeliveryCounts, Requeue, SuspectRequeuer
from chasquimq.engine.in_flight import InFlight
from chasquimq.engine.lease import Lease, LeaseAlarm, StallDetector
from chasquimq.engine.reader import BUSY_BLOCK_MS_MAX, Claimer, Intake, Reader
from chasquimq.engine.runner import STOPPING, Begin, Runners
from chasquimq.engine.settlement import Settlement
from chasquimq.engine.supervisor import ClockSync, Supervisor
from chasquimq.errors import StoreError
from chasquimq.model.log import get_logger
from chasquimq.model.retry import describe
from chasquimq.store.consumer.decode import encode_result

if TYPE_CHECKING:
    from chasquimq.engine.history_recorder import HistoryRecorder
    from chasquimq.engine.job_context import WorkerContext
    from chasquimq.engine.listeners import Listener
    from chasquimq.engine.metrics_listener import HealthReporter
    from chasquimq.engine.supervisor import Loop
    from chasquimq.engine.upkeep import UpkeepLoops
    from chasquimq.model.delivery import Delivery
    from chasquimq.model.retry import RetryPolicy
    from chasquimq.settings import WorkerSettings
    from chasquimq.store.consumer.lease import LeaseStore
    from chasquimq.store.consumer.store import ConsumerStore

logger = get_logger(__name__)
Step = Callable[[], Awaitable[object]]
# A connection may break under any step, and the next one is there at once.
_TRIES = 3
_POLL_S = 0.01
# A read that began just now cannot be unblocked yet; it is asked again.
_UNBLOCK_S = 0.05
# How long after the deadline each step of leaving must be over, all within a second.
_READ_S, _FLUSH_S, _LEAVE_S = 0.25, 0.5, 0.75
# A handler that ignores its cancellation is left to itself after this.
_LAST_WAIT_S = 0.1


class ConsumerPipeline:
    """One running consumer."""

    def __init__(
        self,
        store: ConsumerStore,
        lease_store: LeaseStore,
        upkeep: UpkeepLoops,
        begin: Begin,
        settings: WorkerSettings,
        policy: RetryPolicy,
        *,
        encode: Callable[[Any], bytes] = encode_result,
        listener: Listener | None = None,
        history_recorder: HistoryRecorder | None = None,
        reporter: HealthReporter | None = None,
        context: WorkerContext,
        on_lease_lost: Callable[[Delivery], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.is_reading = False
        self._has_ended = False
        # What it still held when it ended: handlers that could not be stopped, unconfirmed ends.
        self.left_behind: list[Delivery] = []
        self.left_behind_count = 0
        self._settings = settings
        self.store = store
        self.upkeep = upkeep
        self.reporter = reporter
        self._history_recorder = history_recorder
        self._policy = policy
        self._clock_sync = ClockSync(store)
        self._subject = f"worker {store.consumer} of queue {store.keys.queue}"
        self.supervisor = Supervisor(self._subject)
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
            self.in_flight, self.lease, self.runners
        )
        self.reader = self._new_reader()
        self.upkeep.watch_idleness(lambda: self.reader.can_be_woken)

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

    async def stop(self, deadline_s: Callable[[], float]) -> None:
        """Drain until the deadline, which may move closer; what is left goes back.

        However it ends, no loop goes on and no lease is renewed; a second call then does nothing.
        """
        if self._has_ended:
            return
        # What is finished is settled to the end, whoever cancels the loops that do it.
        self.supervisor.keep_only({loop.name for loop in self.settlement.loops})
        self.runners.hold_back(STOPPING)
        try:
            await self._drain(deadline_s)
        finally:
            await self._end()

    async def _drain(self, deadline_s: Callable[[], float]) -> None:
        asked_s = self._loop.time()

        def limit(after_s: float) -> Callable[[], float]:
            return lambda: max(deadline_s(), asked_s) + after_s

        await self._stop_reading(limit(_READ_S))
        await self._wait_for_handlers(deadline_s)
        await self._within(limit(_FLUSH_S), self._flush())
        await self._within(self._patience(limit(_LEAVE_S)), self._leave())

    async def _stop_reading(self, limit_s: Callable[[], float]) -> None:
        self.reader.stop()
        for part in (self._delivery_counts, self._requeuer, self.upkeep, self._clock_sync):
            part.stop()
        await self._within(limit_s, self._end_reading())
        unstarted = self.in_flight.take_all()
        await self._within(limit_s, self._take(lambda: self._requeue.give_unstarted(unstarted)))

    async def _end_reading(self) -> None:
        """Hear the answer to a read under way: what it brings would else be ours for a lease."""
        while reading := self.supervisor.running("reader"):
            if not self.store.is_reading:
                for task in reading:
                    task.cancel()
            await self.store.unblock_reader()
            await asyncio.wait(reading, timeout=_UNBLOCK_S)

    async def _wait_for_handlers(self, deadline_s: Callable[[], float]) -> None:
        while self.in_flight.running_count and self._loop.time() < deadline_s():
            await self.in_flight.wait_for_release(_POLL_S)
        if not self.in_flight.running_count:
            return
        self.runners.interrupt()
        grace_s = self._loop.time() + _LAST_WAIT_S
        while self.in_flight.running_count and self._loop.time() < grace_s:
            await self.in_flight.wait_for_release(_POLL_S)

    async def _flush(self) -> None:
        for loop in self.settlement.loops:
            loop.stop()
        await self.supervisor.ended(*[loop.name for loop in self.settlement.loops])

    async def _leave(self) -> None:
        requeue = self._requeue
        await self._take(
            lambda: requeue.give(self.settlement.interrupted_counts),
            requeue.give_all_unstarted,
            self._remove_consumer,
            self.upkeep.release,
            self._end_history,
        )

    async def _take(self, *steps: Step) -> None:
        """Take every step of stopping, whatever becomes of those before it."""
        for step in steps:
            await self._insist(step)

    async def _insist(self, step: Step) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                await step()
            except StoreError as error:
                if not tries_left:
                    logger.warning("%s: a step of stopping failed: %s", self._subject, error)
            except Exception:  # a bug in one step must not cost the others
                logger.exception("%s: a step of stopping failed", self._subject)
                return
            else:
                return

    async def _remove_consumer(self) -> None:
        # What says that this worker is there goes with the worker, unless it still holds jobs.
        if await self.store.remove_consumer():
            self.lease.retire()
            await self.store.remove_record()

    async def _end_history(self) -> None:
        if self._history_recorder is not None:
            self._history_recorder.stop()
            await self.supervisor.ended(self._history_recorder.name)
            await self._history_recorder.end()

    async def _end(self) -> None:
        self.supervisor.keep_only(set())
        self.left_behind = self.in_flight.deliveries()
        self.left_behind_count = self.in_flight.held_count
        self.lease.stop()
        tasks = list(self.supervisor.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WAIT_S)
        self.settlement.failure_log.flush()
        if self._history_recorder is not None:
            self._history_recorder.give_up()
        await self.upkeep.close()
        await self.store.close()
        self._has_ended = True

    def _patience(self, limit_s: Callable[[], float]) -> Callable[[], float]:
        """Without held jobs there is no reason to wait for a server that refuses to be dialled."""
        if self.in_flight.held_count:
            return limit_s
        soon_s = self._loop.time() + _FLUSH_S
        # A connection that broke just now is no reason yet: rows of the history wait for the next.
        return lambda: min(limit_s(), soon_s) if self.store.is_refused else limit_s()

    async def _within(self, limit_s: Callable[[], float], step: Coroutine[Any, Any, None]) -> None:
        """Take a step of stopping; the limit may move closer meanwhile."""
        task = self.supervisor.spawn(step, "chasqui-stop")
        try:
            while not task.done() and (left_s := limit_s() - self._loop.time()) > 0:
                await asyncio.wait([task], timeout=min(left_s, _UNBLOCK_S))
            if not task.done():
                logger.warning(
                    "%s: a step of stopping was cut short by the deadline", self._subject
                )
            elif task.cancelled():
                logger.warning("%s: a step of stopping was cancelled by other code", self._subject)
            elif error := task.exception():
                self._log_failed_step(error)
        finally:
            task.cancel()

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
        alarm = LeaseAlarm(self._loop, self.settlement, self.runners, context, on_lost)
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

    @property
    def _idle_block_ms(self) -> int:
        """A worker that the server has not heard of for a lease looks dead, also while it waits."""
        return min(
            self._settings.read.block_ms, max(BUSY_BLOCK_MS_MAX, self._settings.lease.beat_ms)
        )

    def _log_failed_step(self, error: BaseException) -> None:
        """Whatever ends a step of stopping, the next ones are taken: leases end, connections close."""
        is_bug = not isinstance(error, StoreError)
        logger.warning(
            "%s: a step of stopping failed: %s", self._subject, describe(error).text,
            exc_info=error if is_bug else None,
        )  # fmt: skip
