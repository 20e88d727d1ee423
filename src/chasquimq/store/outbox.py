"""Sends single adds: a lone one at once, those of one loop tick in a few writes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from chasquimq.errors import StoreError
from chasquimq.store.add_write import AddMark, AddWrite, chunks
from chasquimq.store.connection import End, replies_of
from chasquimq.store.server_errors import about
from chasquimq.wire.new_job import NewJob

if TYPE_CHECKING:
    from chasquimq.store.add_sending import AddSender
    from chasquimq.store.confirming import Confirmation
    from chasquimq.store.connection import Connection
    from chasquimq.store.window import Window

_Waiter = asyncio.Future[AddMark]
# The callers of one part are told, and add again, while the server works on the next.
_PART_MIN = 40


class _Writer(Protocol):
    window: Window
    confirmation: Confirmation | None
    sender: AddSender

    def spell_ready(self, jobs: Sequence[NewJob]) -> AddWrite: ...


class Outbox:
    """Jobs on their way; only trouble costs a task."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._jobs: list[NewJob] = []
        self._waiters: list[_Waiter] = []
        self._is_company_due = writer.confirmation is not None
        self._troubled: set[asyncio.Task[list[AddMark]]] = set()

    def put(self, job: NewJob, connection: Connection) -> _Waiter:
        """Leave at once, or with the others of this tick; the future holds what became of it."""
        waiter: _Waiter = connection.loop.create_future()
        if self._is_company_due or connection.has_unanswered:
            self._gather(job, waiter, connection)
        else:
            # To wait for others who may come would cost a round of the loop.
            self._send([job], [waiter], connection)
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
            self._send(part, waiters[at : at + len(part)], connection)
            at += len(part)

    def _parts(self, jobs: Sequence[NewJob]) -> Sequence[Sequence[NewJob]]:
        # Copies are waited for, and one wait is enough for all.
        if len(jobs) < 2 * _PART_MIN or self._writer.confirmation is not None:
            return chunks(jobs)
        size = -(-len(jobs) // (len(jobs) // _PART_MIN))
        return [chunk for at in range(0, len(jobs), size) for chunk in chunks(jobs[at : at + size])]

    def _send(
        self, jobs: Sequence[NewJob], waiters: Sequence[_Waiter], connection: Connection
    ) -> None:
        write = self._writer.spell_ready(jobs)
        must_ask = self._writer.confirmation is not None or not connection.is_open
        if must_ask or not self._writer.window.try_enter(len(jobs)):
            self._follow(write, waiters, self._enter_and_confirm(write))
            return
        try:
            ((request, reply_count),) = write.pieces()
            connection.post(request, reply_count, partial(self._answered, write, waiters))
        except Exception as error:  # noqa: BLE001 - in a callback of the loop nobody else hears it
            self._give_up(waiters, error)

    def _answered(self, write: AddWrite, waiters: Sequence[_Waiter], end: End) -> None:
        try:
            marks = self._writer.sender.accept(write, replies_of(end))
        except StoreError as trouble:
            # It stays in the window: what may be sent again must be among the remembered ids.
            self._follow(write, waiters, self._confirm(write, trouble))
            return
        except Exception as error:  # noqa: BLE001 - others wait behind us for their answers
            self._give_up(waiters, error)
            return
        self._writer.window.leave(len(waiters))
        for waiter, mark in zip(waiters, marks, strict=True):
            if not waiter.done():
                waiter.set_result(mark)

    def _give_up(self, waiters: Sequence[_Waiter], error: Exception) -> None:
        self._writer.window.leave(len(waiters))
        _tell(waiters, [error] * len(waiters))

    def _follow(
        self,
        write: AddWrite,
        waiters: Sequence[_Waiter],
        confirming: Coroutine[Any, Any, list[AddMark]],
    ) -> None:
        task = asyncio.get_running_loop().create_task(confirming, name="chasqui-confirm-adds")
        self._troubled.add(task)
        task.add_done_callback(lambda done: self._settle(done, write, waiters))

    async def _enter_and_confirm(self, write: AddWrite) -> list[AddMark]:
        await self._writer.window.enter(len(write.jobs))
        return await self._confirm(write, None)

    async def _confirm(self, write: AddWrite, trouble: StoreError | None) -> list[AddMark]:
        try:
            return await self._writer.sender.confirm(write, trouble)
        finally:
            self._writer.window.leave(len(write.jobs))

    def _settle(
        self, task: asyncio.Task[list[AddMark]], write: AddWrite, waiters: Sequence[_Waiter]
    ) -> None:
        self._troubled.discard(task)
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
