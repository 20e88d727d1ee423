"""Starts deliveries and steps their handlers, each in a context of its own.

A handler that never waits costs no task: one runner steps job after job. A handler that waits
keeps its runner to the end, and a fresh runner goes on with the queue; so a timer or a cancel
that one job leaves behind cannot reach another.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from chasquimq.errors import JobTimeout
from chasquimq.model.delivery import describe
from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from chasquimq.engine.delivery_count import DeliveryCounts
    from chasquimq.engine.in_flight import InFlight
    from chasquimq.engine.job_context import JobContext
    from chasquimq.engine.settlement import Settlement
    from chasquimq.engine.supervisor import Supervisor
    from chasquimq.model.delivery import Delivery
    from chasquimq.model.retry import RetryPolicy

# Makes the job's coroutine and its first step: the coroutine, and what it waits for.
# A handler that never waits ends in StopIteration, with its value.
Begin = Callable[["Delivery"], tuple[Coroutine[Any, Any, Any], Any]]
logger = get_logger(__name__)
_SLICE_NS = 5_000_000
# The reason for good; leases that cannot be trusted are one that passes.
STOPPING = "stopping"
# A suspect on its last attempt runs alone, and any other starts between two drains.
_TRIAL = "trial"
# A delivery that waited longer may have been uncharged, or claimed while this process slept.
_FRESH_NS = 200_000_000


class Runners:
    """At most `in_flight.running_max` handlers at once."""

    def __init__(
        self,
        in_flight: InFlight,
        begin: Begin,
        settlement: Settlement,
        supervisor: Supervisor,
        *,
        policy: RetryPolicy,
        delivery_counts: DeliveryCounts,
        stall_after_ms: int,
    ) -> None:
        self._in_flight = in_flight
        in_flight.suspects.on_turn = lambda: self.allow(_TRIAL)
        self._begin = begin
        self._settlement = settlement
        self._supervisor = supervisor
        self._policy = policy
        self._delivery_counts = delivery_counts
        self._stall_after_ms = stall_after_ms
        self._is_draining = False
        # The task that drains the queue; it may end before its first step, by a cancel.
        self._drainer: asyncio.Task[None] | None = None
        self._runner_count = 0
        self._held_back_by: set[str] = set()
        # When a handler was last started, as far as code outside a runner can see.
        self._started_ns = 0
        # Since when jobs wait although they may start, and nothing starts; 0 while that is not so.
        self._stalled_since_ns = 0
        self.stalled_ms = 0
        self.is_stalled = False
        self._base = contextvars.copy_context()
        self._running: dict[asyncio.Task[None], Delivery] = {}
        self._interrupted: set[asyncio.Task[None]] = set()
        self._timed_out: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Make sure that a runner looks at the queue, if a handler may start."""
        in_flight = self._in_flight
        if in_flight.suspects.waiting:
            self._start_suspect()
        if self._is_draining or self._held_back_by or not in_flight.waiting:
            return
        if in_flight.running_count < in_flight.running_max:
            self._start_runner(self._drain())

    def hold_back(self, reason: str) -> None:
        """Start nothing new until every reason is gone."""
        self._held_back_by.add(reason)

    def allow(self, reason: str) -> None:
        self._held_back_by.discard(reason)
        self.wake()

    def check(self) -> None:
        """Replace a runner that died, and notice when nothing starts; called at each beat."""
        if self._is_draining and self._drainer is not None and self._drainer.done():
            self._is_draining = False
        suspects = self._in_flight.suspects
        if not suspects.waiting and not suspects.is_alone:
            self._held_back_by.discard(_TRIAL)
        self.wake()
        self._check_stall()

    def _check_stall(self) -> None:
        """Jobs that may start, beside free room, do so at once; how long have they not?"""
        in_flight, now_ns = self._in_flight, time.monotonic_ns()
        # A trial holds others back for seconds: one that does not end is a stall, too.
        may_start = bool(in_flight.waiting) and not self._held_back_by - {_TRIAL}
        has_room = in_flight.running_count < in_flight.running_max
        if not (may_start and has_room):
            self._stalled_since_ns = 0
        elif self._started_ns >= self._stalled_since_ns:
            self._stalled_since_ns = now_ns
        self.stalled_ms = (now_ns - (self._stalled_since_ns or now_ns)) // 1_000_000
        self._note_stall(self.stalled_ms >= self._stall_after_ms)

    def interrupt(self) -> None:
        """Cancel every running handler; the deadline has passed."""
        for task in list(self._running):
            self._interrupted.add(task)
            task.cancel()

    def _start_runner(self, runner: Coroutine[Any, Any, None]) -> None:
        self._is_draining = True
        self._runner_count = number = self._runner_count + 1
        try:
            task = self._supervisor.spawn(runner, "chasqui-runner")
        except Exception:  # a task factory may be the user's; the next beat tries again
            runner.close()
            self._is_draining = False
            logger.exception(
                "a runner of %s could not be started and is tried again", self._supervisor.subject
            )
        else:
            # An eager task may have handed the queue on already.
            if number == self._runner_count:
                self._drainer = task

    def _note_stall(self, is_stalled: bool) -> None:
        if is_stalled != self.is_stalled:
            self.is_stalled = is_stalled
            if is_stalled:
                logger.error(
                    "%s: %d jobs wait and room is free, but nothing has started for %.1f s",
                    self._supervisor.subject, len(self._in_flight.waiting),
                    self.stalled_ms / 1000,
                )  # fmt: skip
            else:
                logger.warning("%s starts jobs again", self._supervisor.subject)

    def _start_suspect(self) -> None:
        """Start a suspect whose turn has come; a drain ends first, so that no place is used twice.

        One that must be alone holds everything else back from now until its trial is over.
        """
        in_flight, suspects = self._in_flight, self._in_flight.suspects
        is_full = in_flight.running_count >= in_flight.running_max
        if is_full or self._held_back_by - {_TRIAL} or not suspects.has_turn:
            return
        self._held_back_by.add(_TRIAL)
        if self._is_draining or not suspects.may_start(self._running.values()):
            return
        self._start_runner(self._try())

    async def _try(self) -> None:
        """Take a suspect out only here: a task that is cancelled before its first step loses none."""
        task, suspects = asyncio.current_task(), self._in_flight.suspects
        assert task is not None, "runners are tasks"
        suspect = suspects.start() if suspects.has_turn else None
        if not suspects.is_alone:
            self._held_back_by.discard(_TRIAL)
        if suspect is None:
            self._is_draining = False
            self.wake()
            return
        await self._own(task, suspect, self._charged(task, suspect))

    async def _drain(self) -> None:  # noqa: C901, PLR0915 - a frame less per job is the point
        task = asyncio.current_task()
        assert task is not None, "runners are tasks"
        waiting, settlement, begin = self._in_flight.waiting, self._settlement, self._begin
        copy_context, complete, now_ns = self._base.copy, settlement.complete, time.monotonic_ns
        references, has_cancel = sys.getrefcount(task), _has_cancel
        slice_ends_ns = now_ns() + _SLICE_NS
        delivery: Delivery | None = None
        try:
            while waiting and not self._held_back_by:
                delivery = waiting.popleft()
                started_ns = now_ns()
                is_fresh = started_ns - delivery.held_since_ns < _FRESH_NS
                if not (is_fresh and delivery.is_charged) or delivery.is_lease_lost:
                    await self._own(task, delivery, self._charged(task, delivery))
                    return
                delivery.started_ns = started_ns
                context = copy_context()
                try:
                    coroutine, awaited = context.run(begin, delivery)
                except StopIteration as stop:
                    ended_ns = now_ns()
                    delivery.duration_us = (ended_ns - started_ns) // 1000
                    delivery.is_finished = True
                    complete(delivery, stop.value)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001 - a user's handler may raise anything
                    ended_ns = _note_end(delivery)
                    settlement.fail(delivery, error)
                else:
                    rest = _rest(context, coroutine, awaited)
                    await self._own(task, delivery, self._wait(task, delivery, rest))
                    return
                if sys.getrefcount(task) != references or has_cancel(task):
                    # The job kept our task or cancelled it; what follows must not reach another job.
                    break
                if ended_ns > slice_ends_ns:
                    delivery = None
                    self._started_ns = ended_ns
                    await asyncio.sleep(0)
                    slice_ends_ns = now_ns() + _SLICE_NS
        except BaseException as error:  # a bug, or a cancel
            self._died(delivery, error)
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
                raise
        else:
            self._started_ns = now_ns()
            self._is_draining = False
            self.wake()

    def _died(self, delivery: Delivery | None, error: BaseException) -> None:
        """A runner ends early: its delivery is settled nevertheless; the next beat replaces it."""
        if isinstance(error, KeyboardInterrupt):
            return
        if STOPPING not in self._held_back_by:
            logger.error(
                "a runner of %s ended early and is replaced: %s",
                self._supervisor.subject, describe(error).error_type,
            )  # fmt: skip
        if delivery is not None:
            self._settlement.bury_unsettled(delivery, error)

    async def _own(
        self, task: asyncio.Task[None], delivery: Delivery, handler: Awaitable[Any]
    ) -> None:
        """This task belongs to the delivery from here on; a fresh runner takes the queue."""
        self._running[task] = delivery
        self._in_flight.running_count += 1
        self._started_ns = time.monotonic_ns()
        self._is_draining = False
        self.wake()
        try:
            value = await handler
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's handler may raise anything
            _note_end(delivery)
            self._fail(task, delivery, error)
        else:
            _note_end(delivery)
            if value is not _NOT_STARTED:
                self._settlement.complete(delivery, value)
        finally:
            self._disown(task)

    async def _wait(
        self, task: asyncio.Task[None], delivery: Delivery, rest: Awaitable[Any]
    ) -> Any:
        """The handler began and waits for something; from here on its time is counted."""
        self._settlement.started(delivery)
        timer = self._arm(task, delivery)
        try:
            return await rest
        finally:
            if timer is not None:
                timer.cancel()

    def _disown(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._timed_out.discard(task)
        self._interrupted.discard(task)
        self._in_flight.running_count -= 1
        self._in_flight.wake()
        self.wake()

    async def _charged(self, task: asyncio.Task[None], delivery: Delivery) -> Any:
        """Start a delivery that waited long: its charge is confirmed first."""
        if not await self._delivery_counts.charge(delivery):
            self._settlement.dropped(delivery)
            return _NOT_STARTED
        if STOPPING in self._held_back_by:
            # The stop came first; what is held without having started goes back uncharged.
            return _NOT_STARTED
        # The server has just said whose it is, whatever an outage made us fear.
        delivery.is_lease_lost = False
        delivery.started_ns = time.monotonic_ns()
        context = self._base.copy()
        try:
            coroutine, awaited = context.run(self._begin, delivery)
        except StopIteration as stop:
            return stop.value
        return await self._wait(task, delivery, _rest(context, coroutine, awaited))

    def _fail(self, task: asyncio.Task[None], delivery: Delivery, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            if task in self._interrupted:
                self._settlement.interrupted(delivery)
                return
            if task in self._timed_out:
                # Where it was when its time was over.
                where = error.__traceback__
                error = JobTimeout(self._policy.timeout_ms_of(delivery) or 0).with_traceback(where)
        self._settlement.fail(delivery, error)

    def _arm(self, task: asyncio.Task[None], delivery: Delivery) -> asyncio.TimerHandle | None:
        timeout_ms = self._policy.timeout_ms_of(delivery)
        if timeout_ms is None or delivery.is_unstoppable or delivery.has_own_timer:
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(timeout_ms / 1000, self._time_out, task)

    def _time_out(self, task: asyncio.Task[None]) -> None:
        self._timed_out.add(task)
        task.cancel()


def begin_with(
    make_job: Callable[[Delivery, JobContext], Any],
    context: JobContext,
    enter_job: Callable[[Any], object],
    execute: Callable[[Any], Any],
) -> Begin:
    """How this worker starts a run: make the job, enter it, and step its handler once."""

    def begin(delivery: Delivery) -> tuple[Coroutine[Any, Any, Any], Any]:
        job = make_job(delivery, context)
        enter_job(job)
        coroutine: Any = execute(job)
        return coroutine, coroutine.send(None)

    return begin


_NOT_STARTED = object()
# A cancel that was taken back is not counted, yet it waits in the task for its next pause.
_has_cancel: Callable[[asyncio.Task[None]], bool] = attrgetter("_must_cancel")


@types.coroutine
def _rest(
    context: contextvars.Context, coroutine: Coroutine[Any, Any, Any], awaited: Any
) -> Generator[Any, Any, Any]:
    """Step a handler that waits, always inside its own context."""
    while True:
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 - what the loop throws is the handler's
            step, argument = coroutine.throw, error
        else:
            step, argument = coroutine.send, value
        try:
            awaited = context.run(step, argument)
        except StopIteration as stop:
            return stop.value


def _note_end(delivery: Delivery) -> int:
    ended_ns = time.monotonic_ns()
    delivery.duration_us = (ended_ns - delivery.started_ns) // 1000
    delivery.is_finished = True
    return ended_ns
