"""The last steps of a worker: each on its own, so that one that fails costs no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from chasquimq.engine.delivery_count import DeliveryCounts
from chasquimq.engine.in_flight import InFlight
from chasquimq.engine.lease import Lease, LeaseAlarm, StallDetector
from chasquimq.engine.reader import BUSY_BLOCK_MS_MAX, Claimer, Intake, Reader
from chasquimq.engine.runner import STOPPING, Begin, Runners
from chasquimq.engine.settlement import Settlement
from chasquimq.engine.supervisor import ClockSync, Supervisor
from chasquimq.engine.suspects import SuspectRequeuer, uncharged
from chasquimq.errors import StoreError
from chasquimq.model.log import get_logger
from chasquimq.model.retry import describe
from chasquimq.store.consumer.decode import encode_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chasquimq.engine.history_recorder import HistoryRecorder
    from chasquimq.engine.listeners import Listener
    from chasquimq.engine.metrics_listener import HealthReporter
    from chasquimq.engine.settlement import Counters
    from chasquimq.engine.supervisor import Loop
    from chasquimq.engine.upkeep import UpkeepLoops
    from chasquimq.model.delivery import Delivery
    from chasquimq.model.retry import RetryPolicy
    from chasquimq.settings import WorkerSettings
    from chasquimq.store.consumer.lease import LeaseStore
    from chasquimq.store.consumer.store import ConsumerStore

logger = get_logger(__name__)
# A connection may break under any step, and the next one is there at once.
_TRIES = 3

Step = Callable[[], Awaitable[object]]


async def take_leave(*steps: Step) -> None:
    """Take every step; whoever calls sets the limit of time."""
    for step in steps:
        await _insist(step)


async def _insist(step: Step) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            await step()
        except StoreError as error:
            if not tries_left:
                logger.warning("a step of stopping failed: %s", error)
        except Exception:  # a bug in one step must not cost the others
            logger.exception("a step of stopping failed")
            return
        else:
            return


class Requeue:
    """Entries go back with the number of deliveries that they are charged with."""

    def __init__(self, store: ConsumerStore, in_flight: InFlight, counters: Counters) -> None:
        self._store = store
        self._in_flight = in_flight
        self._counters = counters

    async def give(self, counts: Sequence[tuple[bytes, int]]) -> None:
        if counts:
            self._counters.handed_back += await self._store.hand_back(counts)
            self._in_flight.release([entry_id for entry_id, _ in counts])

    async def requeue_unseen(self) -> None:
        """What an answer brought that never arrived would else be ours for a whole lease."""
        self._store.has_gap = False
        held = set(self._in_flight.ids())
        try:
            pending = await self._store.pending()
            await self.give(
                [(one, self._spent(count)) for one, count in pending if one not in held]
            )
        except StoreError:
            self._store.has_gap = True
            raise

    async def requeue_unstarted(self) -> None:
        """What the server gave us and never started here; those still running stay leased."""
        counts: list[tuple[bytes, int]] = []
        for entry_id, count in await self._store.pending():
            delivery = self._in_flight.get(entry_id)
            if delivery is None:
                counts.append((entry_id, self._spent(count)))
            elif not delivery.started_ns:
                counts.append((entry_id, delivery.earlier))
        await self.give(counts)

    def _spent(self, count: int) -> int:
        """What a delivery that nobody heard of is charged with beside itself.

        The claim script charges only what had no charge, so that a larger count is of earlier runs.
        """
        is_charged = count == 1 or self._store.abilities.claim_on_read
        return max(0, count - is_charged)


_POLL_S = 0.01
# A read that began just now cannot be unblocked yet; it is asked again.
_UNBLOCK_S = 0.05
# How long after the deadline each step of leaving must be over, all within a second.
_READ_S, _FLUSH_S, _FAREWELL_S = 0.25, 0.5, 0.75
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
        on_lease_lost: Callable[[Delivery], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_reading = False
        self._has_ended = False
        # What it still held when it ended: handlers that could not be stopped, unconfirmed ends.
        self.left_behind: list[Delivery] = []
        self.left_behind_count = 0
        # Loops that others cancel start again: all of them until the stop, the doors to the end.
        self._kept_names: set[str] | None = None
        self._settings = settings
        self.store = store
        self.upkeep = upkeep
        self.reporter = reporter
        self._history_recorder = history_recorder
        self._listener = listener
        self._policy = policy
        self._clock_sync = ClockSync(store)
        self.supervisor = Supervisor()
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
            self.in_flight, begin, self.settlement, self.spawn,
            timeout_ms_of=policy.timeout_ms_of, charge=self._delivery_counts.charge,
            stall_after_ms=settings.stall_after_ms,
        )  # fmt: skip
        self.lease = self._new_lease(lease_store, on_lease_lost)
        self._stall_detector = self.lease.stall_detector = StallDetector(
            self._on_beat, self.in_flight.ran_through
        )
        self.reader = self._new_reader()
        self.upkeep.heed_idleness(lambda: self.reader.can_be_woken)

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
            self._keep(loop)

    def read(self) -> None:
        """Let jobs in."""
        self.is_reading = True
        self._keep(self.reader)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """The one place where tasks are born."""
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self, deadline_s: Callable[[], float]) -> None:
        """Drain until the deadline, which may move closer; what is left goes back.

        However it ends, no loop goes on and no lease is renewed; a second call then does nothing.
        """
        if self._has_ended:
            return
        self._kept_names = {door.name for door in self.settlement.doors}
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
        await self._within(self._patience(limit(_FAREWELL_S)), self._leave())

    async def _stop_reading(self, limit_s: Callable[[], float]) -> None:
        self.reader.stop()
        for part in (self._delivery_counts, self._requeuer, self.upkeep, self._clock_sync):
            part.stop()
        await self._within(limit_s, self._end_reading())
        unstarted = uncharged(self.in_flight.take_all())
        await self._within(limit_s, take_leave(lambda: self._requeue.give(unstarted)))

    async def _end_reading(self) -> None:
        """Hear the answer to a read under way: what it brings would else be ours for a lease."""
        while reading := self._named("chasqui-reader"):
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
        for door in self.settlement.doors:
            door.stop()
        await self._gone("chasqui-acker", "chasqui-retrier", "chasqui-burier")

    async def _leave(self) -> None:
        give = self._requeue
        await take_leave(
            lambda: give.give(self.settlement.interrupted_counts),
            give.requeue_unstarted,
            self._say_goodbye,
            self.upkeep.release,
            self._end_history,
        )

    async def _say_goodbye(self) -> None:
        # What says that this worker is there goes with the worker, unless it still holds jobs.
        if await self.store.remove_consumer():
            self.lease.retire()
            await self.store.remove_record()

    async def _end_history(self) -> None:
        if self._history_recorder is not None:
            self._history_recorder.stop()
            await self._gone("chasqui-history-recorder")
            await self._history_recorder.end()

    async def _end(self) -> None:
        self._kept_names = set()
        self.left_behind = self.in_flight.deliveries()
        self.left_behind_count = self.in_flight.held_count
        self.lease.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_LAST_WAIT_S)
        self.settlement.failure_log.flush()
        if self._history_recorder is not None:
            self._history_recorder.give_up()
        await self.upkeep.close()
        await self.store.close()
        self._has_ended = True

    async def _gone(self, *names: str) -> None:
        while waiting := self._named(*names):
            await asyncio.wait(waiting)

    def _named(self, *names: str) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks if task.get_name() in names]

    def _patience(self, limit_s: Callable[[], float]) -> Callable[[], float]:
        """Nothing held and nobody to tell: no reason to wait for a server that is gone."""
        if self.in_flight.held_count or self.store.is_up:
            return limit_s
        soon_s = self._loop.time() + _FLUSH_S
        return lambda: min(limit_s(), soon_s)

    async def _within(self, limit_s: Callable[[], float], step: Coroutine[Any, Any, None]) -> None:
        """Take a step of stopping; the limit may move closer meanwhile."""
        task = self.spawn(step, "chasqui-stop")
        try:
            while not task.done() and (left_s := limit_s() - self._loop.time()) > 0:
                await asyncio.wait([task], timeout=min(left_s, _UNBLOCK_S))
            if not task.done():
                logger.warning("a step of stopping was cut short by the deadline")
            elif task.cancelled():
                logger.warning("a step of stopping was cancelled by other code")
            elif error := task.exception():
                _tell(error)
        finally:
            task.cancel()

    def _keep(self, loop: Loop) -> None:
        task = self.spawn(self.supervisor.keep(loop), f"chasqui-{loop.name}")
        task.add_done_callback(lambda task: self._keep_again(loop, task))

    def _keep_again(self, loop: Loop, task: asyncio.Task[None]) -> None:
        """A handler can cancel any task; without this loop its worker would stand still."""
        is_kept = self._kept_names is None or loop.name in self._kept_names
        if not (is_kept and task.cancelled()) or self._loop.is_closed():
            return
        logger.error("loop %s was cancelled by other code and is started again", loop.name)
        self._keep(loop)

    def _loops(self) -> list[Loop]:
        loops: list[Loop] = [
            self._stall_detector,
            *self.settlement.doors,
            self._delivery_counts,
            self._clock_sync,
        ]
        loops += [self._requeuer]
        loops += [loop for loop in (self._history_recorder, self.reporter) if loop is not None]
        return [*loops, *self.upkeep.loops]

    def _new_lease(self, store: LeaseStore, on_lost: Callable[[Delivery], None] | None) -> Lease:
        alarm = LeaseAlarm(
            self._loop, self.in_flight, self.settlement.counters, self.settlement.failure_log,
            self._listener, on_lost,
        )  # fmt: skip
        return Lease(
            store, self.in_flight, self._settings.lease, alarm.ring, self._leases_trusted,
            lambda: self.store.is_up,
        )  # fmt: skip

    def _new_reader(self) -> Reader:
        intake = Intake(
            self.in_flight, self._policy, self.settlement.burier.put, self.runners.wake,
            self.store.clock.now_ms, self._delivery_counts,
        )  # fmt: skip
        claimer = Claimer(self.store, self._settings.lease.lease_ms)
        return Reader(
            self.store, self.in_flight, intake, claimer, self._stall_detector,
            requeue_unseen=self._requeue.requeue_unseen, on_woken=self.upkeep.nudge,
            failure_log=self.settlement.failure_log, block_ms=self._idle_block_ms,
            listener=self._listener,
        )  # fmt: skip

    def _on_beat(self) -> None:
        self.lease.check()
        self.runners.check()

    @property
    def _idle_block_ms(self) -> int:
        """A worker that the server has not heard of for a lease looks dead, also while it waits."""
        return min(
            self._settings.read.block_ms, max(BUSY_BLOCK_MS_MAX, self._settings.lease.beat_ms)
        )

    def _leases_trusted(self, is_trusted: bool) -> None:
        act = self.runners.let_go if is_trusted else self.runners.hold_back
        self._loop.call_soon_threadsafe(act, "leases")


def _tell(error: BaseException) -> None:
    """Whatever ends a step of stopping, the next ones are taken: leases end, connections close."""
    is_bug = not isinstance(error, StoreError)
    logger.warning(
        "a step of stopping failed: %s", describe(error).text, exc_info=error if is_bug else None
    )
