"""Tracks writes that the server has not confirmed yet, and answers their callers.

It bounds the bytes that wait for an answer, and builds the error of a call that gets none.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol

from chasquimq.errors import ConnectionLost, ServerUnreachable, StoreError
from chasquimq.store.net.errors import about, is_worth_resending
from chasquimq.store.net.reconnect import Deadline, ReconnectingConnection
from chasquimq.store.producer.writes import ADDED, AddMark, AddWrite, ids_of

if TYPE_CHECKING:
    from chasquimq.wire.new_job import NewJob


class TooLate(Protocol):
    """Makes the error for a call whose deadline has passed."""

    def __call__(
        self, jobs: Sequence[NewJob], deadline: Deadline, unconfirmed: UnconfirmedWrite, /
    ) -> StoreError: ...


class UnconfirmedWrite:
    """A write from its first send until its callers know what became of it.

    Before it first leaves it may be encoded again.
    """

    __slots__ = ("count", "error", "first_s", "is_inside", "size", "write")

    write: AddWrite
    # How the last send ended.
    error: StoreError | None
    # The first deadline of its callers; infinite where no caller is left.
    first_s: float

    def __init__(self, write: AddWrite, count: int, size: int) -> None:
        self.write = write
        self.count = count
        self.size = size
        # Whether it counts among the unconfirmed jobs.
        self.is_inside = False
        self.error = None

    @property
    def deadline(self) -> Deadline:
        """Until when it may be sent; in the past where no caller waits for it any more."""
        raise NotImplementedError

    @property
    def is_unwanted(self) -> bool:
        """Whether no caller waits for it any more, so that it need not be sent again."""
        return self.deadline.at_s == -inf

    def confirmed(self, marks: list[AddMark]) -> None:
        """Answer the callers: one mark a job."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """Raise the error to the callers."""
        raise NotImplementedError

    def answer_late(self, now_s: float) -> None:
        """Answer the calls whose deadline has passed, and set `first_s` for the others."""
        raise NotImplementedError

    def leave_out_gone(self, encode: Callable[[Sequence[NewJob]], AddWrite]) -> None:
        """Encode it without the jobs that no caller waits for any more; called before it leaves."""
        raise NotImplementedError


class BulkWrite(UnconfirmedWrite):
    """A write whose jobs belong to one call."""

    __slots__ = ("_deadline", "_too_late", "waiter")

    def __init__(
        self, write: AddWrite, size: int, deadline: Deadline, too_late: TooLate,
        waiter: asyncio.Future[list[AddMark]],
    ) -> None:  # fmt: skip
        super().__init__(write, len(write.jobs), size)
        self.waiter = waiter
        self.first_s = deadline.at_s
        self._deadline = deadline
        self._too_late = too_late

    @property
    def deadline(self) -> Deadline:
        return self._deadline._replace(at_s=-inf) if self.waiter.done() else self._deadline

    def confirmed(self, marks: list[AddMark]) -> None:
        if not self.waiter.done():
            self.waiter.set_result(marks)

    def failed(self, error: BaseException) -> None:
        if self.waiter.done():
            return
        if isinstance(error, StoreError) and not error.job_ids:
            error = about(error, ids_of(self.write.jobs))
        self.waiter.set_exception(error)

    def answer_late(self, now_s: float) -> None:
        self.first_s = inf
        if not self.waiter.done():
            late = self._too_late(self.write.jobs, self._deadline, self)
            self.waiter.set_exception(late)

    def leave_out_gone(self, encode: Callable[[Sequence[NewJob]], AddWrite]) -> None:
        if self.waiter.done():
            raise _unwanted()


AddWaiter = asyncio.Future[AddMark]


@dataclass(frozen=True, slots=True)
class SharedTerms:
    """What holds for all adds of one producer; `own` are the deadlines of calls that have one."""

    limit_ms: int
    setting: str
    waits: bool
    own: dict[AddWaiter, Deadline]
    too_late: TooLate


class SharedWrite(UnconfirmedWrite):
    """A write whose jobs belong to as many calls.

    A call without a deadline of its own has until `until_s`.
    """

    __slots__ = ("_terms", "_until_s", "waiters")

    waiters: Sequence[AddWaiter]

    def __init__(
        self, write: AddWrite, size: int, waiters: Sequence[AddWaiter], terms: SharedTerms,
        until_s: float,
    ) -> None:  # fmt: skip
        # As the class above does, without a call that each write would pay for.
        self.write = write
        self.count = len(waiters)
        self.size = size
        self.is_inside = False
        self.error = None
        self.waiters = waiters
        self._terms = terms
        self._until_s = self.first_s = until_s
        if terms.own:
            self.first_s = min(self._deadline_of(one).at_s for one in waiters)

    @property
    def deadline(self) -> Deadline:
        """The last of the callers that still wait."""
        waiting = [self._deadline_of(one).at_s for one in self.waiters if not one.done()]
        terms = self._terms
        return Deadline(max(waiting, default=-inf), terms.limit_ms, terms.waits, terms.setting)

    def confirmed(self, marks: list[AddMark]) -> None:
        for waiter, mark in zip(self.waiters, marks, strict=True):
            if not waiter.done():
                waiter.set_result(mark)

    def failed(self, error: BaseException) -> None:
        answer(self.waiters, _answers(self.write, error))

    def answer_late(self, now_s: float) -> None:
        """What these callers get stays true from now on."""
        self.first_s = inf
        for job, waiter in zip(self.write.jobs, self.waiters, strict=True):
            if waiter.done():
                continue
            deadline = self._deadline_of(waiter)
            if deadline.at_s > now_s:
                self.first_s = min(self.first_s, deadline.at_s)
                continue
            late = self._terms.too_late([job], deadline, self)
            waiter.set_exception(late)

    def leave_out_gone(self, encode: Callable[[Sequence[NewJob]], AddWrite]) -> None:
        pairs = zip(self.write.jobs, self.waiters, strict=True)
        wanted = [(job, waiter) for job, waiter in pairs if not waiter.done()]
        if len(wanted) == len(self.waiters):
            return
        if not wanted:
            raise _unwanted()
        self.write = encode([job for job, _ in wanted])
        self.waiters = [waiter for _, waiter in wanted]

    def _deadline_of(self, waiter: AddWaiter) -> Deadline:
        own = self._terms.own.get(waiter)
        if own is not None:
            return own
        terms = self._terms
        return Deadline(self._until_s, terms.limit_ms, terms.waits, terms.setting)


def answer(waiters: Sequence[AddWaiter], answers: Iterable[AddMark | BaseException]) -> None:
    """Give each caller that still waits its mark or its error."""
    for waiter, one in zip(waiters, answers, strict=True):
        if waiter.done():
            continue
        if isinstance(one, BaseException):
            waiter.set_exception(one)
        else:
            waiter.set_result(one)


def _answers(write: AddWrite, error: BaseException) -> Iterator[AddMark | BaseException]:
    """What each job of a failed write gets: the error is about all of them, or about some."""
    if not isinstance(error, StoreError):
        yield from [error] * len(write.jobs)
        return
    failed = set(error.job_ids) or {job.job_id for job in write.jobs}
    for job in write.jobs:
        yield about(error, [job.job_id]) if job.job_id in failed else ADDED


def _unwanted() -> ConnectionLost:
    return ConnectionLost("no caller waits for this write any more", outcome="not_done")


class UnconfirmedBytes:
    """Backpressure: adders wait while this many bytes of encoded jobs are unconfirmed.

    An adder calls `room` before it encodes a job and `take` right after, without waiting in
    between. So no more than one call stands above the maximum, and one that is larger than the
    maximum goes like any other. First come, first served.
    """

    def __init__(self, size_max: int) -> None:
        self.size = 0
        # Whether adders must wait; true for as long as one does, so that none overtakes.
        self.is_full = False
        self.size_max = size_max
        self._turns: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def take(self, size: int) -> None:
        self.size += size
        if self.size >= self.size_max:
            self.is_full = True

    def free(self, size: int) -> None:
        self.size -= size
        if self.is_full:
            self._give_turn()

    @contextmanager
    def taken(self, size: int) -> Generator[None]:
        """Take for as long as the block runs."""
        self.take(size)
        try:
            yield
        finally:
            self.free(size)

    async def room(self) -> None:
        """Return when it is this caller's turn to encode and `take`."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._turns[turn] = None
        self._give_turn()
        try:
            await turn
        finally:
            del self._turns[turn]
            # The next one looks when this one has taken its bytes, or has gone.
            loop.call_soon(self._give_turn)

    def _give_turn(self) -> None:
        if self.size >= self.size_max:
            return
        turn = next(iter(self._turns), None)
        if turn is None:
            self.is_full = False
        elif not turn.done():
            turn.set_result(None)


# ── what callers get for an error ─────────────────────────────────────────────────────────────────

_NOT_ADDED = "nothing was added: add again, or give it longer with add_timeout_ms"
_OWN_IDS = "it may be added or not: adding it again under the same job_id is safe"
_FRESH_IDS = (
    "it may be added or not: look for it with get_job() before you add it again, and add with a "
    "job_id of your own where adding again must be safe"
)


class AddErrors:
    """Makes the errors that callers get, with the true outcome of their adds."""

    def __init__(self, connection: ReconnectingConnection) -> None:
        self._connection = connection

    def too_late(
        self,
        jobs: Sequence[NewJob],
        deadline: Deadline,
        unconfirmed: UnconfirmedWrite | None = None,
    ) -> StoreError:
        """The error for a call whose time is over; None: nothing of it was ever sent."""
        may_be_done = unconfirmed is not None and unconfirmed.write.may_be_done
        error = None if unconfirmed is None else unconfirmed.error
        if error is not None and not may_be_done and not isinstance(error, ConnectionLost):
            # The server is there, and says itself why it cannot take the jobs yet.
            return about(error, ids_of(jobs))
        refusal = self._connection.refusal
        rule = f"{deadline} and did not" + (f" ({refusal})" if refusal else "")
        lost = self._lost(jobs, rule, may_be_done=may_be_done)
        lost.__cause__ = error or refusal
        return lost

    def unsent(self, unconfirmed: UnconfirmedWrite, error: StoreError) -> StoreError:
        """No connection could be had for a write, this time."""
        write = unconfirmed.write
        if isinstance(error, ServerUnreachable) and not write.may_be_done:
            return about(error, ids_of(write.jobs))
        return self._ended(write, error)

    def raise_unless_resendable(self, unconfirmed: UnconfirmedWrite, error: StoreError) -> None:
        """Return where a write that ended like this may be sent again."""
        write, deadline = unconfirmed.write, unconfirmed.deadline
        is_lost = isinstance(error, ConnectionLost)
        if deadline.left_s <= 0 and is_lost:
            late = self.too_late(write.jobs, deadline, unconfirmed)
            raise late from late.__cause__
        # An error reply to a write that no one remembers may follow jobs that were added.
        may_resend = deadline.waits or (is_lost and not write.may_be_done)
        may_go_on = deadline.left_s > 0 and may_resend and not self._connection.is_closed
        if not may_go_on or not (is_lost or is_worth_resending(error)):
            raise self._ended(write, error) from error.__cause__

    def _ended(self, write: AddWrite, error: StoreError) -> StoreError:
        """The same error for the callers whose jobs these are, with its true outcome."""
        if not isinstance(error, ConnectionLost):
            return error
        lost = self._lost(write.jobs, f"and did not ({error})", may_be_done=write.may_be_done)
        lost.__cause__ = error
        return lost

    def _lost(self, jobs: Sequence[NewJob], rule: str, *, may_be_done: bool) -> ConnectionLost:
        hint = _NOT_ADDED
        if may_be_done:
            hint = _OWN_IDS if all(job.digest for job in jobs) else _FRESH_IDS
        return ConnectionLost(
            f"the server at {self._connection.address} must confirm an add {rule}; {hint}",
            job_ids=ids_of(jobs),
            outcome="unknown" if may_be_done else "not_done",
        )
