"""Sends single adds: a lone one at once, those of one loop tick in a few writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.store.net.connection import End, replies_of
from chasquimq.store.net.errors import about
from chasquimq.store.producer.sender import may_have_added
from chasquimq.store.producer.writes import (
    AddDeadline,
    AddMark,
    AddWrite,
    Chunk,
    PendingWrite,
    chunks,
    payload_bytes,
)
from chasquimq.wire.new_job import NewJob

if TYPE_CHECKING:
    from chasquimq.store.net.connection import Connection
    from chasquimq.store.producer.sender import AddSender, Confirmation
    from chasquimq.store.producer.unconfirmed import Deadlines, UnconfirmedBytes, Window

_Waiter = asyncio.Future[AddMark]
# The callers of one part are told, and add again, while the server works on the next.
_PART_MIN = 40


class _Writer(Protocol):
    window: Window
    unconfirmed: UnconfirmedBytes
    deadlines: Deadlines
    confirmation: Confirmation | None
    sender: AddSender

    def spell_ready(self, jobs: Sequence[NewJob]) -> AddWrite: ...


class Outbox:
    """Jobs on their way; only trouble costs a task.

    A call whose deadline has passed is answered, and its job does not leave any more.
    """

    def __init__(self, writer: _Writer, limit_ms: int, *, waits: bool) -> None:
        self._writer = writer
        self._unconfirmed = writer.unconfirmed
        self._deadlines = writer.deadlines
        self._limit_ms = limit_ms
        self._limit_s = limit_ms / 1000
        self._waits = waits
        self._jobs: list[NewJob] = []
        self._waiters: list[_Waiter] = []
        # The deadlines of calls that have one of their own.
        self._own: dict[_Waiter, AddDeadline] = {}
        self._is_company_due = writer.confirmation is not None
        self._troubled: set[asyncio.Task[list[AddMark]]] = set()

    def put(
        self, job: NewJob, connection: Connection, deadline: AddDeadline | None = None
    ) -> _Waiter:
        """Leave at once, or with the others of this tick; the future holds what became of it."""
        waiter: _Waiter = connection.loop.create_future()
        if deadline is not None:
            self._own[waiter] = deadline
            waiter.add_done_callback(self._own.pop)
        size = len(job.payload)
        # What `take` does, without the call that each job would pay for.
        unconfirmed = self._unconfirmed
        unconfirmed.size += size
        if unconfirmed.size >= unconfirmed.size_max:
            unconfirmed.is_full = True
        if self._is_company_due or connection.has_unanswered:
            self._gather(job, waiter, connection)
        else:
            # To wait for others who may come would cost a round of the loop.
            self._send(([job], size), [waiter], connection)
        return waiter

    def _gather(self, job: NewJob, waiter: _Waiter, connection: Connection) -> None:
        if not self._jobs:
            self._is_company_due = True
            connection.loop.call_soon(self._flush, connection)
        self._jobs.append(job)
        self._waiters.append(waiter)

    def _flush(self, connection: Connection) -> None:
        jobs, waiters = self._jobs, self._waiters
        self._jobs, self._waiters = [], []
        # Who came together is told together, and often comes together again.
        self._is_company_due = len(jobs) > 1 or self._writer.confirmation is not None
        at = 0
        for part in self._parts(jobs):
            jobs_of_part, _ = part
            self._send(part, waiters[at : at + len(jobs_of_part)], connection)
            at += len(jobs_of_part)

    def _parts(self, jobs: Sequence[NewJob]) -> Sequence[Chunk]:
        # Copies are waited for, and one wait is enough for all.
        if len(jobs) < 2 * _PART_MIN or self._writer.confirmation is not None:
            return chunks(jobs, payload_bytes(jobs))
        count = -(-len(jobs) // (len(jobs) // _PART_MIN))
        cut = [jobs[at : at + count] for at in range(0, len(jobs), count)]
        return [chunk for some in cut for chunk in chunks(some, payload_bytes(some))]

    def _send(self, part: Chunk, waiters: Sequence[_Waiter], connection: Connection) -> None:
        jobs, size = part
        must_ask = self._writer.confirmation is not None or not connection.is_open
        try:
            write = self._writer.spell_ready(jobs)
            # Many pieces are encoded as they leave; nothing may leave before all can be.
            pieces = list(write.pieces()) if must_ask else write.pieces()
        except Exception as error:  # noqa: BLE001 - in a callback of the loop nobody else hears it
            self._send_apart(part, waiters, connection, error)
            return
        shared = _SharedWrite(self, write, size, waiters, connection.loop.time() + self._limit_s)
        self._watch(shared)
        if must_ask or not self._writer.window.try_enter(len(jobs)):
            self._follow(shared, self._enter_and_confirm(shared))
            return
        ((request, reply_count),) = pieces
        try:
            write.may_be_done = True
            connection.post(request, reply_count, shared.answered)
        except Exception as error:  # noqa: BLE001 - in a callback of the loop nobody else hears it
            self._writer.window.leave(len(jobs))
            self._give_up(shared, error)

    def _send_apart(
        self, part: Chunk, waiters: Sequence[_Waiter], connection: Connection, error: Exception
    ) -> None:
        """One of the jobs cannot be encoded, and nothing has left: only that one fails."""
        jobs, size = part
        if len(jobs) == 1:
            self._unconfirmed.free(size)
            _tell(waiters, [error])
            return
        for job, waiter in zip(jobs, waiters, strict=True):
            self._send(([job], len(job.payload)), [waiter], connection)

    def answered(self, shared: _SharedWrite, end: End) -> None:
        """The first send of a write has come to its end."""
        write = shared.write
        try:
            marks = self._writer.sender.accept(write, replies_of(end))
        except StoreError as trouble:
            # Known before the next deadline passes: what a call hears depends on it.
            write.may_be_done = may_have_added(write, trouble)
            # It stays in the window: what may be sent again must be among the remembered ids.
            shared.trouble = trouble
            self._follow(shared, self._confirm(shared))
            return
        except Exception as error:  # noqa: BLE001 - others wait behind us for their answers
            self._writer.window.leave(shared.count)
            self._give_up(shared, error)
            return
        self._writer.window.leave(shared.count)
        self._leave(shared)
        for waiter, mark in zip(shared.waiters, marks, strict=True):
            if not waiter.done():
                waiter.set_result(mark)

    def deadline_of(self, shared: _SharedWrite) -> AddDeadline:
        """The last of those who still wait for a write: until then it may be sent."""
        waiting = [waiter for waiter in shared.waiters if not waiter.done()]
        until_s = max((self._until_s(shared, one) for one in waiting), default=-inf)
        return AddDeadline(until_s, self._limit_ms, self._waits)

    def _until_s(self, shared: _SharedWrite, waiter: _Waiter) -> float:
        own = self._own.get(waiter)
        return shared.until_s if own is None else own.at_s

    def _watch(self, shared: _SharedWrite) -> None:
        if self._own:
            shared.first_s = min(self._until_s(shared, one) for one in shared.waiters)
        self._deadlines.watch(shared)

    def answer_late(self, shared: _SharedWrite, now_s: float) -> None:
        """Some callers of a write have waited long enough; what they hear is true from now on."""
        shared.first_s = inf
        for job, waiter in zip(shared.write.jobs, shared.waiters, strict=True):
            if waiter.done():
                continue
            until_s = self._until_s(shared, waiter)
            if until_s > now_s:
                shared.first_s = min(shared.first_s, until_s)
                continue
            own = self._own.get(waiter)
            limit_ms = self._limit_ms if own is None else own.limit_ms
            waiter.set_exception(self._writer.sender.too_late([job], limit_ms, shared))

    def _leave(self, shared: _SharedWrite) -> None:
        self._deadlines.forget(shared)
        self._unconfirmed.free(shared.size)

    def _give_up(self, shared: _SharedWrite, error: Exception) -> None:
        self._leave(shared)
        _tell(shared.waiters, [error] * len(shared.waiters))

    def _follow(self, shared: _SharedWrite, confirming: Coroutine[Any, Any, list[AddMark]]) -> None:
        task = asyncio.get_running_loop().create_task(confirming, name="chasqui-confirm-adds")
        self._troubled.add(task)
        task.add_done_callback(lambda done: self._settle(done, shared))

    async def _enter_and_confirm(self, shared: _SharedWrite) -> list[AddMark]:
        await self._writer.window.enter(shared.count)
        return await self._confirm(shared)

    async def _confirm(self, shared: _SharedWrite) -> list[AddMark]:
        try:
            return await self._writer.sender.confirm(shared)
        finally:
            self._writer.window.leave(shared.count)

    def _settle(self, task: asyncio.Task[list[AddMark]], shared: _SharedWrite) -> None:
        self._troubled.discard(task)
        self._leave(shared)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        _tell(shared.waiters, task.result() if error is None else _answers(shared.write, error))


class _SharedWrite(PendingWrite):
    """A write whose jobs belong to as many calls."""

    __slots__ = ("_outbox", "count", "first_s", "size", "until_s", "waiters")

    def __init__(
        self,
        outbox: Outbox,
        write: AddWrite,
        size: int,
        waiters: Sequence[_Waiter],
        until_s: float,
    ) -> None:
        self.write = write
        self.trouble = None
        self.waiters = waiters
        self.count = len(waiters)
        self.size = size
        # The deadline of calls that have none of their own, and the first of all that wait.
        self.until_s = self.first_s = until_s
        self._outbox = outbox

    @property
    def deadline(self) -> AddDeadline:
        return self._outbox.deadline_of(self)

    def answered(self, end: End) -> None:
        self._outbox.answered(self, end)

    def answer_late(self, now_s: float) -> None:
        self._outbox.answer_late(self, now_s)

    def leave_out_gone(self, spell: Callable[[Sequence[NewJob]], AddWrite]) -> None:
        pairs = zip(self.write.jobs, self.waiters, strict=True)
        wanted = [(job, waiter) for job, waiter in pairs if not waiter.done()]
        if len(wanted) == len(self.waiters):
            return
        if not wanted:
            raise ConnectionLost("nobody waits for this write any more", outcome="not_done")
        self.write = spell([job for job, _ in wanted])
        self.waiters = [waiter for _, waiter in wanted]


def _tell(waiters: Sequence[_Waiter], answers: Iterable[AddMark | BaseException]) -> None:
    for waiter, answer in zip(waiters, answers, strict=True):
        if waiter.done():
            continue
        if isinstance(answer, BaseException):
            waiter.set_exception(answer)
        else:
            waiter.set_result(answer)


def _answers(write: AddWrite, error: BaseException) -> Iterator[AddMark | BaseException]:
    """What each job of a failed write hears: the error is about all of them, or about some."""
    if not isinstance(error, StoreError):
        yield from [error] * len(write.jobs)
        return
    failed = set(error.job_ids) or {job.job_id for job in write.jobs}
    for job in write.jobs:
        yield about(error, [job.job_id]) if job.job_id in failed else AddMark.ADDED
