"""Renews leases from a dedicated thread, reports those that are lost, detects a blocked event loop.

Every key in flight is renewed each third of a lease, prefetched jobs too. The thread has a connection
of its own, so that a handler which blocks the event loop costs no lease. When no renewal got through
for nearly a lease, no lease is trusted and nothing new is started.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from chasquimq.engine.supervisor import Ticker
from chasquimq.errors import StoreError
from chasquimq.model.log import LogThrottle, get_logger
from chasquimq.store.net.connect import dial_delay_ms

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from chasquimq.engine.in_flight import InFlight
    from chasquimq.engine.job_context import WorkerContext
    from chasquimq.engine.runner import Runners
    from chasquimq.engine.settlement import Settlement
    from chasquimq.model.delivery import Delivery
    from chasquimq.settings import LeaseSettings
    from chasquimq.store.consumer.lease import LeaseStore
    from chasquimq.store.consumer.store import ConsumerStore

logger = get_logger(__name__)
# After a renewal that failed; and how often the thread looks at leases while it waits to dial.
_RETRY_S = 0.2
_LOOK_S = 0.05


class Lease:
    """Owns the thread; `check` may be called from the event loop, too."""

    def __init__(
        self,
        store: LeaseStore,
        in_flight: InFlight,
        settings: LeaseSettings,
        alarm: LeaseAlarm,
        consumer: ConsumerStore,
    ) -> None:
        """`consumer` has the other connections of this worker to the same server."""
        self._store = store
        self._in_flight = in_flight
        self._settings = settings
        self._alarm = alarm
        self._consumer = consumer
        self._queue = consumer.keys.queue
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_s = time.monotonic()
        self.stall_detector: StallDetector | None = None
        # Two threads decide on trust: what is decided first is passed on first.
        self._deciding = threading.Lock()
        self.is_trusted = True

    @property
    def beat_age_ms(self) -> int:
        """How long ago leases were last renewed; 0 where no thread renews them."""
        if self._thread is None:
            return 0
        return int((time.monotonic() - self._renewed_s) * 1000)

    def start(self) -> None:
        """Start the thread; it ends with `stop` or with the process."""
        self._renewed_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="chasqui-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def retire(self) -> None:
        """Go on renewing leases, and write no more records of this worker."""
        self._store.retire()

    def check(self) -> None:
        """Trust no lease that could not be renewed for too long; called from either side."""
        if not self._is_over():
            return
        with self._deciding:
            # A renewal may have come between the two looks.
            is_lapse = self.is_trusted and self._is_over()
            if is_lapse:
                self._trust(False)
                self._alarm.lost(self._in_flight.keys())
        if is_lapse:
            logger.warning(
                "worker %s of queue %s could not renew its leases in time, so nothing new is started",
                self._consumer.consumer, self._queue,
            )  # fmt: skip

    def _is_over(self) -> bool:
        silent_ms = (time.monotonic() - self._renewed_s) * 1000
        return self._thread is not None and silent_ms >= self._settings.lost_after_ms

    def _run(self) -> None:
        failures = 0
        began_s = time.monotonic()
        # What the worker says of itself should be there when it begins; nothing is held yet.
        self._safely(self._store.publish)
        pause_s = max(0.0, self._settings.beat_ms / 1000 - (time.monotonic() - began_s))
        while not self._stopped.wait(pause_s):
            is_renewed = self._safely(self._beat)
            failures = 0 if is_renewed else failures + 1
            pause_s = self._settings.beat_ms / 1000 if is_renewed else self._retry_s
            if failures:
                self._await_server(failures)
        self._store.close()

    def _safely(self, act: Callable[[], object]) -> bool:
        try:
            return bool(act())
        except Exception:  # without this thread every lease would run out in silence
            logger.exception("renewing leases of queue %s failed and is tried again", self._queue)
            return False

    def _await_server(self, failures: int) -> None:
        """Dial no more often than any other connection, until one of them gets through."""
        until_s = time.monotonic() + dial_delay_ms(failures, random.uniform) / 1000
        while time.monotonic() < until_s and not self._consumer.is_up:
            if self._stopped.wait(_LOOK_S):
                return
            self._safely(self.check)

    @property
    def _retry_s(self) -> float:
        return min(_RETRY_S, self._settings.beat_ms / 4000)

    def _beat(self) -> bool:
        asked_s = time.monotonic()
        try:
            lost = self._store.renew(self._held())
        except StoreError as error:
            logger.debug("leases of queue %s were not renewed: %s", self._queue, error)
            self.check()
            return False
        except Exception:  # a bug must not let every lease run out in silence
            logger.exception("renewing leases of queue %s failed and is tried again", self._queue)
            self.check()
            return False
        with self._deciding:
            # A lease runs from when the server was asked, not from when it answered.
            is_back, silent_s = not self.is_trusted, asked_s - self._renewed_s
            self._renewed_s = asked_s
            self._trust(True)
        if is_back:
            logger.warning(
                "worker %s of queue %s renews its leases again after %.1f s, and jobs start again",
                self._consumer.consumer, self._queue, silent_s,
            )  # fmt: skip
        if lost:
            self._alarm.lost(lost)
        return True

    def _held(self) -> set[bytes]:
        held = set(self._in_flight.keys())
        if self.stall_detector is not None and self.stall_detector.is_still:
            # What the server gave us waits unseen in the socket while the event loop stands still.
            held.update(self._store.pending())
        return held

    def _trust(self, is_trusted: bool) -> None:
        """Decide and pass it on, in one step for the other thread; call it with the lock."""
        if self.is_trusted != is_trusted:
            self._alarm.trusted(is_trusted)
            self.is_trusted = is_trusted


class LeaseAlarm:
    """Passes what the lease thread found on to the event loop: to the runners, listeners and hook."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        settlement: Settlement,
        runners: Runners,
        context: WorkerContext,
        on_lost: Callable[[Delivery], None] | None,
    ) -> None:
        self._loop = loop
        self._settlement = settlement
        self._runners = runners
        self._context = context
        self._on_lost = on_lost

    def trusted(self, is_trusted: bool) -> None:
        """Called by the lease thread: let jobs start, or hold them back."""
        act = self._runners.allow if is_trusted else self._runners.hold_back
        self._loop.call_soon_threadsafe(act, "leases")

    def lost(self, keys: list[bytes]) -> None:
        """Called by the lease thread: mark at once, report on the event loop."""
        for key in keys:
            delivery = self._settlement.in_flight.get(key)
            if delivery is not None and not (delivery.is_lease_lost or delivery.is_finished):
                delivery.is_lease_lost = True
                self._loop.call_soon_threadsafe(self._report, delivery)

    def _report(self, delivery: Delivery) -> None:
        settlement = self._settlement
        if delivery.is_finished or settlement.in_flight.get(delivery.key) is None:
            return  # its ack was on the way
        self._context.lease_lost(delivery)
        settlement.counters.leases_lost += 1
        settlement.failure_log.lease_lost(delivery)
        if settlement.listener is not None:
            settlement.listener.lease_lost()
        if self._on_lost is not None and delivery.started_ns:
            self._call_hook(self._on_lost, delivery)

    def _call_hook(self, hook: Callable[[Delivery], None], delivery: Delivery) -> None:
        try:
            hook(delivery)
        except Exception:  # a callback of the event loop has no caller to raise to
            logger.exception(
                "the hook on_lease_lost could not be called for job %s", delivery.job_id
            )


_BEAT_MS = 50
_STILL_NS = 150_000_000
_BLOCKED_NS = 1_000_000_000
_ADVICE = (
    "make a handler that computes or waits without await a plain def, which runs in a thread, "
    "or use a process pool"
)
_OTHER_ADVICE = "look at hooks and other code of this process, and whether the machine was busy"


class StallDetector:
    """Beats while the event loop runs; may be asked from any thread whether it does."""

    name = "stall-detector"

    def __init__(self, in_flight: InFlight, lease: Lease, runners: Runners, subject: str) -> None:
        """At each beat leases and runners are checked; `subject` is the worker in the log."""
        self._subject = subject
        self._in_flight = in_flight
        self._lease = lease
        self._runners = runners
        self._beat_ns = time.monotonic_ns()
        self._woke_ns = 0
        self._ticker = Ticker()
        self._throttle = LogThrottle()

    @property
    def is_still(self) -> bool:
        """Whether the event loop does nothing right now."""
        return time.monotonic_ns() - self._beat_ns > _STILL_NS

    def has_slept_since(self, ns: int) -> bool:
        """Whether what was asked then may have been answered long before we saw it."""
        return self._woke_ns > ns or time.monotonic_ns() - self._beat_ns > _STILL_NS

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._ticker.is_stopped:
            self.run_once()
            # A plain timer comes first after a block: the job is still held then.
            timer = loop.call_later(_BEAT_MS / 1000, self._check_block, self._beat_ns)
            try:
                await self._ticker.pause(_BEAT_MS)
            finally:
                timer.cancel()

    def run_once(self) -> None:
        """One beat."""
        now_ns = time.monotonic_ns()
        if self.is_still:
            self._woke_ns = now_ns
        self._beat_ns = now_ns
        self._lease.check()
        self._runners.check()

    def _check_block(self, beat_ns: int) -> None:
        blocked_ns = time.monotonic_ns() - beat_ns
        if blocked_ns < _BLOCKED_NS or not self._throttle.allows():
            return
        jobs = self._in_flight.ran_through(beat_ns)
        logger.warning(
            "the event loop of %s was blocked for %.1f s while %s ran; %s%s",
            self._subject, blocked_ns / 1e9, _named(jobs), _ADVICE if jobs else _OTHER_ADVICE,
            self._throttle.held_back_text(),
        )  # fmt: skip


def _named(jobs: list[Delivery]) -> str:
    if not jobs:
        return "no job"
    first = f"job {jobs[0].job_id} ({jobs[0].name or 'no name'})"
    return first if len(jobs) == 1 else f"{len(jobs)} jobs, among them {first},"
