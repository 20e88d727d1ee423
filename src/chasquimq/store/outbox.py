"""Sends single adds: a lone one at once, those of one loop tick in a few writes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from chasquimq.errors import StoreError
from chasquimq.store.add_write import AddMark, AddWrite, Chunk, chunks, payload_bytes
from chasquimq.store.connection import End, replies_of
from chasquimq.store.server_errors import about
from chasquimq.wire.new_job import NewJob

if TYPE_CHECKING:
    from chasquimq.store.add_sending import AddSender
    from chasquimq.store.confirming import Confirmation
    from chasquimq.store.connection import Connection
    from chasquimq.store.window import UnconfirmedBytes, Window

_Waiter = asyncio.Future[AddMark]
# The callers of one part are told, and add again, while the server works on the next.
_PART_MIN = 40


class _Writer(Protocol):
    window: Window
    unconfirmed: UnconfirmedBytes
    confirmation: Confirmation | None
    sender: AddSender

    def spell_ready(self, jobs: Sequence[NewJob]) -> AddWrite: ...


class Outbox:
    """Jobs on their way; only trouble costs a task."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._unconfirmed = writer.unconfirmed
        self._jobs: list[NewJob] = []
        self._waiters: list[_Waiter] = []
        self._is_company_due = writer.confirmation is not None
        self._troubled: set[asyncio.Task[list[AddMark]]] = set()

    def put(self, job: NewJob, connection: Connection) -> _Waiter:
        """Leave at once, or with the others of this tick; the future holds what became of it."""
        waiter: _Waiter = connection.loop.create_future()
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
        if must_ask or not self._writer.window.try_enter(len(jobs)):
            self._follow(write, size, waiters, self._enter_and_confirm(write))
            return
        ((request, reply_count),) = pieces
        try:
            connection.post(request, reply_count, partial(self._answered, write, size, waiters))
        except Exception as error:  # noqa: BLE001 - in a callback of the loop nobody else hears it
            self._writer.window.leave(len(jobs))
            self._give_up(size, waiters, error)

    def _send_apart(
        self, part: Chunk, waiters: Sequence[_Waiter], connection: Connection, error: Exception
    ) -> None:
        """One of the jobs cannot be encoded, and nothing has left: only that one fails."""
        jobs, size = part
        if len(jobs) == 1:
            self._give_up(size, waiters, error)
            return
        for job, waiter in zip(jobs, waiters, strict=True):
            self._send(([job], len(job.payload)), [waiter], connection)

    def _answered(self, write: AddWrite, size: int, waiters: Sequence[_Waiter], end: End) -> None:
        try:
            marks = self._writer.sender.accept(write, replies_of(end))
        except StoreError as trouble:
            # It stays in the window: what may be sent again must be among the remembered ids.
            self._follow(write, size, waiters, self._confirm(write, trouble))
            return
        except Exception as error:  # noqa: BLE001 - others wait behind us for their answers
            self._writer.window.leave(len(waiters))
            self._give_up(size, waiters, error)
            return
        self._writer.window.leave(len(waiters))
        self._unconfirmed.free(size)
        for waiter, mark in zip(waiters, marks, strict=True):
            if not waiter.done():
                waiter.set_result(mark)

    def _give_up(self, size: int, waiters: Sequence[_Waiter], error: Exception) -> None:
        self._unconfirmed.free(size)
        _tell(waiters, [error] * len(waiters))

    def _follow(
        self,
        write: AddWrite,
        size: int,
        waiters: Sequence[_Waiter],
        confirming: Coroutine[Any, Any, list[AddMark]],
    ) -> None:
        task = asyncio.get_running_loop().create_task(confirming, name="chasqui-confirm-adds")
        self._troubled.add(task)
        task.add_done_callback(lambda done: self._settle(done, write, size, waiters))

    async def _enter_and_confirm(self, write: AddWrite) -> list[AddMark]:
        await self._writer.window.enter(len(write.jobs))
        return await self._confirm(write, None)

    async def _confirm(self, write: AddWrite, trouble: StoreError | None) -> list[AddMark]:
        try:
            return await self._writer.sender.confirm(write, trouble)
        finally:
            self._writer.window.leave(len(write.jobs))

    def _settle(
        self,
        task: asyncio.Task[list[AddMark]],
        write: AddWrite,
        size: int,
        waiters: Sequence[_Waiter],
    ) -> None:
        self._troubled.discard(task)
        self._unconfirmed.free(size)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        _tell(waiters, task.result() if error is None else _answers(write, error))


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
