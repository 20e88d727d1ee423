"""Shuts a worker down gracefully: the wish to stop, its deadline, and the steps until the end.

To stop: read nothing more, give back what has not started, wait for what has, send what is finished,
leave. Each step is taken on its own, so that one which fails costs no other, and each has a limit.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from chasquimq.engine.runner import STOPPING
from chasquimq.errors import StoreError
from chasquimq.model.delivery import describe
from chasquimq.model.log import get_logger
from chasquimq.model.stop_signals import StopSignals

if TYPE_CHECKING:
    from chasquimq.engine.delivery_count import Requeue
    from chasquimq.engine.history_recorder import HistoryRecorder
    from chasquimq.engine.in_flight import InFlight
    from chasquimq.engine.lease import Lease
    from chasquimq.engine.runner import Runners
    from chasquimq.engine.settlement import Settlement
    from chasquimq.engine.supervisor import Supervisor
    from chasquimq.engine.upkeep import UpkeepLoops
    from chasquimq.model.delivery import Delivery
    from chasquimq.store.consumer.store import ConsumerStore

logger = get_logger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How often a stop is begun again that was cancelled.
_STOP_TRIES = 5


class Stopping:
    """The wish to stop, and the moment at which it must be fulfilled."""

    def __init__(self, deadline_ms: int) -> None:
        self._deadline_ms = deadline_ms
        self._deadline_s: float | None = None
        self._asked = asyncio.Event()

    def set_deadline(self, deadline_ms: int) -> None:
        """How long running jobs may go on; for those who have not been asked yet."""
        self._deadline_ms = deadline_ms

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """The first time sets the deadline, the second time it is now."""
        patience_ms = 0 if self.is_asked else self._deadline_ms
        self._deadline_s = time.monotonic() + patience_ms / 1000
        self._asked.set()

    def hurry(self) -> None:
        """Move a deadline that was set to now; who was not asked has none to wait for."""
        if self.is_asked:
            self.ask()

    async def wait(self) -> None:
        await self._asked.wait()

    def deadline(self) -> Callable[[], float]:
        """A deadline that may move closer; who stops without being asked has no time left."""
        now_s = time.monotonic()
        return lambda: now_s if self._deadline_s is None else self._deadline_s


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Generator[None]:
    """Let the running loop call `stop` for each signal that asks for the end, but for echoes."""
    loop, signals = asyncio.get_running_loop(), StopSignals()

    def on_signal() -> None:
        if signals.note():
            stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def to_the_end(
    stop: Callable[[], Coroutine[Any, Any, None]], hurry: Callable[[], None]
) -> bool:
    """Stop although we are cancelled meanwhile: a stop that is cut in two leaves its leases behind.

    Each cancel hurries it. The answer says whether there was one, which is then to be passed on.
    """
    was_cancelled = False
    for _ in range(_STOP_TRIES):
        stopping = asyncio.ensure_future(stop())
        while not stopping.done():
            try:
                await asyncio.wait([stopping])
            except asyncio.CancelledError:
                was_cancelled = True
                hurry()
        # Code that cancels every task reaches this one, too.
        if not stopping.cancelled():
            stopping.result()
            break
    return was_cancelled


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


class _Stoppable(Protocol):
    def stop(self) -> None: ...


class Shutdown:
    """Takes the steps that end one running consumer."""

    def __init__(
        self,
        store: ConsumerStore,
        in_flight: InFlight,
        supervisor: Supervisor,
        settlement: Settlement,
        runners: Runners,
        lease: Lease,
        *,
        requeue: Requeue,
        upkeep: UpkeepLoops,
        stop_first: Sequence[_Stoppable],
        history_recorder: HistoryRecorder | None,
    ) -> None:
        """`stop_first`: loops that the drain does not need, as the reader; in their order."""
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._in_flight = in_flight
        self._supervisor = supervisor
        self._settlement = settlement
        self._runners = runners
        self._lease = lease
        self._requeue = requeue
        self._upkeep = upkeep
        self._stop_first = stop_first
        self._history_recorder = history_recorder
        self._subject = supervisor.subject
        self._is_over = False
        # What was still held at the end: handlers that could not be stopped, unconfirmed ends.
        self.left_behind: list[Delivery] = []
        self.left_behind_count = 0

    async def run(self, deadline_s: Callable[[], float]) -> None:
        """Drain until the deadline, which may move closer; what is left goes back.

        However it ends, no loop goes on and no lease is renewed; a second call then does nothing.
        """
        if self._is_over:
            return
        # What is finished is settled to the end, even if other code cancels the loops that do it.
        self._supervisor.keep_only({loop.name for loop in self._settlement.loops})
        self._runners.hold_back(STOPPING)
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
        for part in (*self._stop_first, self._upkeep):
            part.stop()
        await self._within(limit_s, self._end_reading())
        unstarted = self._in_flight.take_all()
        await self._within(limit_s, self._take(lambda: self._requeue.give_unstarted(unstarted)))

    async def _end_reading(self) -> None:
        """Wait for the answer to a read under way: what it brings would else be ours for a lease."""
        while reading := self._supervisor.running("reader"):
            if not self._store.is_reading:
                for task in reading:
                    task.cancel()
            await self._store.unblock_reader()
            await asyncio.wait(reading, timeout=_UNBLOCK_S)

    async def _wait_for_handlers(self, deadline_s: Callable[[], float]) -> None:
        while self._in_flight.running_count and self._loop.time() < deadline_s():
            await self._in_flight.wait_for_release(_POLL_S)
        if not self._in_flight.running_count:
            return
        self._runners.interrupt()
        grace_s = self._loop.time() + _LAST_WAIT_S
        while self._in_flight.running_count and self._loop.time() < grace_s:
            await self._in_flight.wait_for_release(_POLL_S)

    async def _flush(self) -> None:
        for loop in self._settlement.loops:
            loop.stop()
        await self._supervisor.ended(*[loop.name for loop in self._settlement.loops])

    async def _leave(self) -> None:
        requeue = self._requeue
        await self._take(
            lambda: requeue.give(self._settlement.interrupted_counts),
            requeue.give_all_unstarted,
            self._remove_consumer,
            self._upkeep.release,
            self._end_history,
        )

    async def _remove_consumer(self) -> None:
        # What says that this worker is there goes with the worker, unless it still holds jobs.
        if await self._store.remove_consumer():
            self._lease.retire()
            await self._store.remove_record()

    async def _end_history(self) -> None:
        if self._history_recorder is not None:
            self._history_recorder.stop()
            await self._supervisor.ended(self._history_recorder.name)
            await self._history_recorder.end()

    async def _end(self) -> None:
        self._supervisor.keep_only(set())
        self.left_behind = self._in_flight.deliveries()
        self.left_behind_count = self._in_flight.held_count
        self._lease.stop()
        tasks = list(self._supervisor.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WAIT_S)
        self._settlement.failure_log.flush()
        if self._history_recorder is not None:
            self._history_recorder.give_up()
        await self._upkeep.close()
        await self._store.close()
        self._is_over = True

    def _patience(self, limit_s: Callable[[], float]) -> Callable[[], float]:
        """Without held jobs there is no reason to wait long for a server that is not there."""
        if self._in_flight.held_count:
            return limit_s
        store, soon_s = self._store, self._loop.time() + _FLUSH_S
        history = self._history_recorder
        # A connection that broke just now may come back, and the end of a history waits for that.
        has_time = history is not None and history.has_rows
        is_away = (lambda: store.is_refused) if has_time else (lambda: not store.can_write)
        return lambda: min(limit_s(), soon_s) if is_away() else limit_s()

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

    async def _within(self, limit_s: Callable[[], float], step: Coroutine[Any, Any, None]) -> None:
        """Take a step of stopping; the limit may move closer meanwhile."""
        task = self._supervisor.spawn(step, "chasqui-stop")
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

    def _log_failed_step(self, error: BaseException) -> None:
        """Whatever ends a step of stopping, the next ones are taken: leases end, connections close."""
        is_bug = not isinstance(error, StoreError)
        logger.warning(
            "%s: a step of stopping failed: %s", self._subject, describe(error).text,
            exc_info=error if is_bug else None,
        )  # fmt: skip
