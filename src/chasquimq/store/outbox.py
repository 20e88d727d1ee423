"""Gathers the single adds of one loop tick into one write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from chasquimq.errors import StoreError
from chasquimq.store.add_write import AddMark, AddWrite, chunks
from chasquimq.wire.new_job import NewJob

if TYPE_CHECKING:
    from chasquimq.store.confirming import Confirmation
    from chasquimq.store.connection import Reply
    from chasquimq.store.link import Link
    from chasquimq.store.window import Window

_Waiter = asyncio.Future[AddMark]
# Jobs with ids of their own, which have a window, do not come through here.
_UNUSED_MS = 1


class _Writer(Protocol):
    link: Link
    window: Window
    confirmation: Confirmation | None

    def spell(self, jobs: Sequence[NewJob], unique_ms: int) -> AddWrite: ...

    def accept(self, write: AddWrite, replies: list[Reply]) -> list[AddMark]: ...

    async def confirm(
        self, write: AddWrite, trouble: StoreError | None = None
    ) -> list[AddMark]: ...


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
            self._confirm(write, waiters, None)
            return
        answer = connection.send(write.request(), write.reply_count)
        answer.add_done_callback(lambda done: self._answered(write, waiters, done))

    def _answered(
        self, write: AddWrite, waiters: Sequence[_Waiter], answer: asyncio.Future[list[Reply]]
    ) -> None:
        self._writer.window.leave(len(waiters))
        try:
            marks = self._writer.accept(write, answer.result())
        except StoreError as trouble:
            self._confirm(write, waiters, trouble)
            return
        for waiter, mark in zip(waiters, marks, strict=True):
            if not waiter.done():
                waiter.set_result(mark)

    def _confirm(
        self, write: AddWrite, waiters: Sequence[_Waiter], trouble: StoreError | None
    ) -> None:
        task = asyncio.get_running_loop().create_task(
            self._confirm_within_window(write, trouble), name="chasqui-confirm-adds"
        )
        self._troubled.add(task)
        task.add_done_callback(lambda done: self._settle(done, waiters))

    async def _confirm_within_window(
        self, write: AddWrite, trouble: StoreError | None
    ) -> list[AddMark]:
        await self._writer.window.enter(len(write.jobs))
        try:
            return await self._writer.confirm(write, trouble)
        finally:
            self._writer.window.leave(len(write.jobs))

    def _settle(self, task: asyncio.Task[list[AddMark]], waiters: Sequence[_Waiter]) -> None:
        self._troubled.discard(task)
        for at, waiter in enumerate(waiters):
            if waiter.done():
                continue
            if task.cancelled():
                waiter.cancel()
            elif (error := task.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(task.result()[at])
