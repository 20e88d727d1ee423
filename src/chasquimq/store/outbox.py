"""Gathers the single adds of one loop tick into one write."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from chasquimq.errors import StoreError
from chasquimq.store.add_write import AddMark, AddWrite, Answers, chunks, send_pieces
from chasquimq.store.server_errors import about
from chasquimq.wire.new_job import NewJob

if TYPE_CHECKING:
    from chasquimq.store.add_sending import AddSender
    from chasquimq.store.confirming import Confirmation
    from chasquimq.store.link import Link
    from chasquimq.store.window import Window

_Waiter = asyncio.Future[AddMark]
# Jobs with ids of their own, which have a window, do not come through here.
_UNUSED_MS = 1


class _Writer(Protocol):
    link: Link
    window: Window
    confirmation: Confirmation | None
    sender: AddSender

    def spell(self, jobs: Sequence[NewJob], unique_ms: int) -> AddWrite: ...


class Outbox:
    """Jobs on their way; only trouble costs a task."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._jobs: list[NewJob] = []
        self._waiters: list[_Waiter] = []
        self._troubled: set[asyncio.Task[list[AddMark]]] = set()

    def put(self, job: NewJob) -> _Waiter:
        """Leave with the others of this tick; the future holds what became of the job."""
        loop = asyncio.get_running_loop()
        if not self._jobs:
            loop.call_soon(self._flush)
        waiter: _Waiter = loop.create_future()
        self._jobs.append(job)
        self._waiters.append(waiter)
        return waiter

    def _flush(self) -> None:
        jobs, waiters = self._jobs, self._waiters
        self._jobs, self._waiters = [], []
        at = 0
        for chunk in chunks(jobs):
            self._send(chunk, waiters[at : at + len(chunk)])
            at += len(chunk)

    def _send(self, jobs: Sequence[NewJob], waiters: Sequence[_Waiter]) -> None:
        write = self._writer.spell(jobs, _UNUSED_MS)
        connection = self._writer.link.current
        must_ask = self._writer.confirmation is not None
        if connection is None or must_ask or not self._writer.window.try_enter(len(jobs)):
            self._follow(write, waiters, self._enter_and_confirm(write))
            return
        try:
            answers = send_pieces(connection, write.pieces())
        except Exception as error:  # noqa: BLE001 - in a callback of the loop nobody else hears it
            self._writer.window.leave(len(jobs))
            _tell(waiters, [error] * len(waiters))
            return
        # Replies come in order: with the last piece all are answered.
        answers[-1].add_done_callback(lambda _: self._answered(write, waiters, answers))

    def _answered(self, write: AddWrite, waiters: Sequence[_Waiter], answers: Answers) -> None:
        try:
            replies = [reply for answer in answers for reply in answer.result()]
            marks = self._writer.sender.accept(write, replies)
        except StoreError as trouble:
            # It stays in the window: what may be sent again must be among the remembered ids.
            self._follow(write, waiters, self._confirm(write, trouble))
            return
        self._writer.window.leave(len(waiters))
        for waiter, mark in zip(waiters, marks, strict=True):
            if not waiter.done():
                waiter.set_result(mark)

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
