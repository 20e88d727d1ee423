"""Keeps delivery counts right: charges what starts, and nothing that waits or goes back unstarted.

The server counts deliveries. A run that died with its worker is known by that count alone, so it must
not hold deliveries that started nothing. Jobs with earlier charged deliveries are suspects: they run
one at a time, so that the next crash is charged to the job that caused it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from chasquimq.engine.supervisor import Ticker
from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from chasquimq.engine.in_flight import InFlight
    from chasquimq.engine.settlement import Counters
    from chasquimq.model.delivery import Count, Delivery
    from chasquimq.store.consumer.store import ConsumerStore

_RETRY_MS = 100


class DeliveryCounts:
    """Uncharges what waits, in batches; charges one delivery right before its start."""

    name = "delivery-counts"

    def __init__(self, store: ConsumerStore, in_flight: InFlight, uncharge_after_ms: int) -> None:
        self._store = store
        self._in_flight = in_flight
        self._uncharge_after_ms = uncharge_after_ms
        # Entries whose count on the server may be wrong, until a write has set it right.
        self._doubted: set[bytes] = set()
        self._ticker = Ticker()

    def stop(self) -> None:
        self._ticker.stop()

    def correct(self, known: list[Delivery]) -> None:
        """A delivery of an id we hold was counted by the server, but starts nothing."""
        for again in known:
            held = self._in_flight.get(again.key)
            if held is not None:
                # Others may have run it while we stood still, and that is spent, too.
                own = held.is_charged or again.key in self._doubted
                held.earlier = max(held.earlier, again.earlier - own)
                self._in_flight.suspect([held])
        self._doubted.update(delivery.key for delivery in known)

    def suspect(self, redelivered: list[Delivery]) -> None:
        """Charge what was delivered before only when it starts, not when it is read.

        One of them may end this process too, and the others must not pay for it.
        """
        for delivery in redelivered:
            delivery.is_charged = False
            self._doubted.add(delivery.key)
        if redelivered:
            self._ticker.nudge()

    async def charge(self, delivery: Delivery) -> bool:
        """Count a start before it happens; False: the entry is ours no more.

        Other counts that are in doubt are set right before: this start may end the process.
        """
        # Said before it is written, so that a correction meanwhile does not take it back.
        delivery.is_charged = True
        while True:
            doubted, self._doubted = self._doubted - {delivery.key}, set()
            own = (delivery.key, delivery.earlier + 1)
            try:
                lost = await self._store.charge([*self._counts(doubted), own])
            except StoreError:
                # No start without its charge, however long the server is away.
                self._doubted |= doubted
                await asyncio.sleep(_RETRY_MS / 1000)
                continue
            return delivery.key not in lost

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self.run_once()
            await self._ticker.pause(self._uncharge_after_ms / 2)

    async def run_once(self) -> None:
        """Uncharge what has waited too long, correct what was counted twice."""
        self._doubt_overdue()
        doubted, self._doubted = self._doubted, set()
        counts = self._counts(doubted)
        if not counts:
            return
        try:
            await self._store.charge(counts)
        except StoreError:
            self._doubted |= doubted
            raise

    def _doubt_overdue(self) -> None:
        since_ns = time.monotonic_ns() - self._uncharge_after_ms * 1_000_000
        for delivery in self._in_flight.waiting:
            if delivery.is_charged and delivery.held_since_ns <= since_ns:
                # From now on a start charges again, whether or not the next write gets through.
                delivery.is_charged = False
                self._doubted.add(delivery.key)

    def _counts(self, keys: set[bytes]) -> list[Count]:
        """The counts as they should be now; a start since the doubt is in them."""
        held = [self._in_flight.get(key) for key in keys]
        return [(one.key, one.earlier + one.is_charged) for one in held if one is not None]


# What kills its process mostly does it early; a run of this length counts as harmless.
PROVED_S = 5.0
# Each suspect that lasts so long, or that took longer than the least time until it ended, halves
# the wait of the next one: a hundred jobs of a worker that was killed from outside run again in
# about a minute, and not in eight.
_PROVED_S_MIN = 0.5
# A suspect waits so long for those before it, and the first of them for a place to run.
_WAIT_S_MAX, _FIRST_WAIT_S_MAX = 1.0, 1.2 * PROVED_S
# Where not even the first gets a place, others have so long to take it before this one claims.
_OFFER_S = 1.0
_LOOK_MS = 250


class Suspects:
    """Runs redelivered jobs one at a time, because a run of one of them may have killed its process.

    A suspect is a job with earlier charged deliveries: a run of it began, and no end is known.
    Suspects wait in a line of their own, beside the other jobs:

    - At most one of them is on trial in a worker. The next one starts when the server has confirmed
      the end of the first, or when the first has run for `PROVED_S`. An end that the server does
      not confirm, because it refuses the burial or the ack, holds others back for as long.
    - A suspect on its last attempt runs alone: the crash that buries it leaves no doubt whose it
      was. It starts when every other run has ended or lasted `PROVED_S`, and nothing starts beside
      it until it has ended or lasted as long.
    - What waits for too long goes back to the server, uncharged, for workers that have time.

    `on_turn` asks the runners of this worker to look here again.
    """

    def __init__(self, max_attempts_of: Callable[[Delivery], int]) -> None:
        self.waiting: deque[Delivery] = deque()
        self.on_turn: Callable[[], None] = lambda: None
        self._max_attempts_of = max_attempts_of
        self._on_trial: Delivery | None = None
        # Whether the suspect on trial has its worker for itself.
        self.is_alone = False
        # When the worker began to be kept free for a suspect on its last attempt.
        self._began_s = 0.0
        self._proved_s = PROVED_S
        self._rests_until_s = 0.0
        self._offers_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def may_claim(self) -> bool:
        """Whether this worker has time for more of them.

        A claim counts as a delivery until the worker has taken it back, so nothing is claimed
        while a suspect may end the process.
        """
        return not (
            self.waiting or self._on_trial is not None or time.monotonic() < self._offers_until_s
        )

    @property
    def has_turn(self) -> bool:
        """Whether the first one may start as far as other suspects are concerned."""
        if self._on_trial is not None or not self.waiting:
            return False
        return not self._is_last(self.waiting[0]) or time.monotonic() >= self._rests_until_s

    def may_start(self, running: Iterable[Delivery]) -> bool:
        """Whether the first one may start beside these; if not, ask again when they are older."""
        if not self._is_last(self.waiting[0]):
            return True
        self._began_s = self._began_s or time.monotonic()
        now_ns = time.monotonic_ns()
        left_s = max([_left_s(one, now_ns, PROVED_S) for one in running], default=0.0)
        if left_s > 0:
            self._look_in(left_s)
        return left_s <= 0

    def start(self) -> Delivery:
        """Take the first one out; it is on trial until it is settled or has lasted."""
        suspect = self._on_trial = self.waiting.popleft()
        self.is_alone = self._is_last(suspect)
        self._look_in(self._needed_s)
        return suspect

    def settled(self, keys: Collection[bytes]) -> None:
        """The next one may start: a crash can no longer charge the one before."""
        suspect = self._on_trial
        if suspect is not None and suspect.key in keys:
            if suspect.duration_us > _PROVED_S_MIN * 1e6:
                self._hurry_next()
            self._end_trial()

    def take_all(self) -> list[Delivery]:
        """Take all of them out."""
        taken = list(self.waiting)
        self.waiting.clear()
        return taken

    def take_overdue(self) -> list[Delivery]:
        """Those that have waited too long here, while other workers may have time."""
        now_ns = time.monotonic_ns()
        overdue: list[Delivery] = []
        kept: list[Delivery] = []
        for one in self.take_all():
            limit_s = _WAIT_S_MAX if kept or overdue else self._first_wait_s_max
            is_overdue = now_ns - one.held_since_ns >= limit_s * 1e9
            (overdue if is_overdue else kept).append(one)
        self.waiting.extend(kept)
        if overdue and not kept:
            self._offers_until_s = time.monotonic() + _OFFER_S
        if overdue and self._on_trial is None:
            self.on_turn()
        return overdue

    @property
    def _first_wait_s_max(self) -> float:
        is_awaited = self._began_s > 0 and self._on_trial is None
        return math.inf if is_awaited else _FIRST_WAIT_S_MAX

    def _is_last(self, suspect: Delivery) -> bool:
        return suspect.run_number >= self._max_attempts_of(suspect)

    @property
    def _needed_s(self) -> float:
        return PROVED_S if self.is_alone else self._proved_s

    def _end_trial(self) -> None:
        if self.is_alone:
            # Other jobs get as much time as those that want the worker for themselves.
            took_s = time.monotonic() - self._began_s
            self._rests_until_s = time.monotonic() + took_s
            self._look_in(took_s)
        self._on_trial, self._began_s, self.is_alone = None, 0.0, False
        self.on_turn()

    def _look_in(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        suspect = self._on_trial
        if suspect is None:
            self.on_turn()
            return
        left_s = self._trial_left_s(suspect)
        if left_s > 0:
            self._look_in(left_s)
            return
        if not suspect.is_finished:
            self._hurry_next()
        self._end_trial()

    def _hurry_next(self) -> None:
        """Another one proved harmless, so that the next need not last as long."""
        if not self.is_alone:
            self._proved_s = max(_PROVED_S_MIN, self._proved_s / 2)

    def _trial_left_s(self, suspect: Delivery) -> float:
        now_ns = time.monotonic_ns()
        if not suspect.is_finished:
            return _left_s(suspect, now_ns, self._needed_s)
        ended_ns = suspect.started_ns + suspect.duration_us * 1_000
        return PROVED_S - (now_ns - ended_ns) / 1e9


class SuspectRequeuer:
    """Gives suspects that wait in vain to other workers."""

    name = "suspects"

    def __init__(self, suspects: Suspects, requeue: Requeue) -> None:
        self._suspects = suspects
        self._requeue = requeue
        self._ticker = Ticker()

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self.run_once()
            await self._ticker.pause(_LOOK_MS)

    async def run_once(self) -> None:
        """Requeue what is overdue; if the server does not answer, it waits on here."""
        if not self._suspects.waiting:
            return
        overdue = self._suspects.take_overdue()
        try:
            await self._requeue.give_unstarted(overdue)
        except BaseException:
            self._suspects.waiting.extendleft(reversed(overdue))
            raise


def _left_s(delivery: Delivery, now_ns: int, needed_s: float) -> float:
    """How much longer a run must last, or its end may stay unconfirmed.

    All of it where the run has not started: its charge waits for the server.
    """
    if delivery.is_finished:
        ended_ns = delivery.started_ns + delivery.duration_us * 1_000
        return needed_s - (now_ns - ended_ns) / 1e9
    if not delivery.started_ns:
        return needed_s
    return needed_s - (now_ns - delivery.started_ns) / 1e9


class Requeue:
    """Gives entries back to the group, with the number of deliveries that they are charged with."""

    def __init__(self, store: ConsumerStore, in_flight: InFlight, counters: Counters) -> None:
        self._store = store
        self._in_flight = in_flight
        self._counters = counters

    async def give(self, counts: Sequence[Count]) -> None:
        if counts:
            self._counters.handed_back += await self._store.requeue(counts)
            self._in_flight.release([key for key, _ in counts])

    async def give_unstarted(self, deliveries: Sequence[Delivery]) -> None:
        """Give back what has not started here, charged with earlier deliveries only."""
        await self.give([(delivery.key, delivery.earlier) for delivery in deliveries])

    async def requeue_unseen(self) -> None:
        """Give back what an answer brought that never arrived; it would be ours for a whole lease."""
        self._store.has_gap = False
        held = set(self._in_flight.keys())
        try:
            pending = await self._store.pending()
            await self.give(
                [(key, self._spent(count)) for key, count in pending if key not in held]
            )
        except StoreError:
            self._store.has_gap = True
            raise

    async def give_all_unstarted(self) -> None:
        """Give back whatever the server gave us and never started here; what runs stays leased."""
        counts: list[Count] = []
        for key, count in await self._store.pending():
            delivery = self._in_flight.get(key)
            if delivery is None:
                counts.append((key, self._spent(count)))
            elif not delivery.started_ns:
                counts.append((key, delivery.earlier))
        await self.give(counts)

    def _spent(self, count: int) -> int:
        """What a delivery that no worker received is charged with beside itself.

        The claim script charges only what had no charge, so that a larger count is of earlier runs.
        """
        is_charged = count == 1 or self._store.abilities.claim_on_read
        return max(0, count - is_charged)
