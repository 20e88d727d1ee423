"""Sends adds at once where nothing is in the way, and again until confirmed or too late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from chasquimq.errors import (
    DurabilityNotMet,
    QueueFull,
    StoreError,
)
from chasquimq.model.chunks import in_chunks
from chasquimq.store.net.connection import (
    Connection,
    End,
    GatheredReplies,
    OnEnd,
    Reply,
    replies_of,
)
from chasquimq.store.net.errors import may_have_left
from chasquimq.store.net.reconnect import Deadline, ReconnectingConnection, pause
from chasquimq.store.net.script import is_forgotten
from chasquimq.store.producer.unconfirmed import (
    AddErrors,
    AddWaiter,
    BulkWrite,
    SharedTerms,
    SharedWrite,
    UnconfirmedBytes,
    UnconfirmedWrite,
    answer,
)
from chasquimq.store.producer.writes import (
    AddEncoder,
    AddMark,
    AddWrite,
    Chunk,
    Pieces,
    chunks,
    ids_of,
    payload_bytes,
)

if TYPE_CHECKING:
    from chasquimq.store.producer.durability import Confirmation
    from chasquimq.wire.new_job import NewJob

# The callers of one part are answered, and add again, while the server works on the next.
_PART_MIN = 40


class AddSender:
    """Sends the adds of one producer; only an error or a wait costs a task.

    A lone add leaves at once, and the adds of one loop tick leave in a few writes. A call whose
    deadline has passed is answered, and its jobs do not leave any more.
    """

    def __init__(
        self,
        connection: ReconnectingConnection,
        encoder: AddEncoder,
        confirmation: Confirmation | None,
        connect: Callable[[Deadline], Awaitable[Connection]],
        jobs: UnconfirmedJobs,
        payloads: UnconfirmedBytes,
        limit_ms: int,
        *,
        setting: str,
        waits: bool,
    ) -> None:
        """`connect` opens a connection that is ready for adds."""
        self._reconnecting = connection
        self._encoder = encoder
        self._confirmation = confirmation
        self._connect = connect
        self._unconfirmed_jobs = jobs
        self._unconfirmed_bytes = payloads
        self._limit_s = limit_ms / 1000
        self._deadlines = Deadlines()
        self._jobs: list[NewJob] = []
        self._waiters: list[AddWaiter] = []
        self._own: dict[AddWaiter, Deadline] = {}
        self.errors = AddErrors(connection)
        self._terms = SharedTerms(limit_ms, setting, waits, self._own, self.errors.too_late)
        self._is_batching = confirmation is not None
        self._following: set[asyncio.Task[list[AddMark]]] = set()

    def add(
        self, job: NewJob, connection: Connection, deadline: Deadline | None = None
    ) -> AddWaiter:
        """Send a job at once, or with the others of this tick; the future holds its mark."""
        waiter: AddWaiter = connection.loop.create_future()
        if deadline is not None:
            self._own[waiter] = deadline
            waiter.add_done_callback(self._own.pop)
        size = len(job.payload)
        # What `take` does, without the call that each job would pay for.
        unconfirmed = self._unconfirmed_bytes
        unconfirmed.size += size
        if unconfirmed.size >= unconfirmed.size_max:
            unconfirmed.is_full = True
        if self._is_batching or connection.has_unanswered:
            self._gather(job, waiter, connection)
        else:
            # To wait for others that may come would cost a round of the loop.
            self._send_shared(([job], size), [waiter], connection)
        return waiter

    def add_bulk(
        self, write: AddWrite, size: int, deadline: Deadline, connection: Connection | None
    ) -> asyncio.Future[list[AddMark]]:
        """Send the jobs of one call, whose bytes were taken; None: they wait for a connection."""
        waiter: asyncio.Future[list[AddMark]] = asyncio.get_running_loop().create_future()
        bulk = BulkWrite(write, size, deadline, self.errors.too_late, waiter)
        self._send(bulk, None if self._confirmation is not None else connection)
        return waiter

    def close(self) -> None:
        """Answer no more calls because of their deadlines."""
        self._deadlines.close()

    def _gather(self, job: NewJob, waiter: AddWaiter, connection: Connection) -> None:
        if not self._jobs:
            self._is_batching = True
            connection.loop.call_soon(self._flush, connection)
        self._jobs.append(job)
        self._waiters.append(waiter)

    def _flush(self, connection: Connection) -> None:
        jobs, waiters = self._jobs, self._waiters
        self._jobs, self._waiters = [], []
        # Callers that came together are answered together, and often come together again.
        self._is_batching = len(jobs) > 1 or self._confirmation is not None
        at = 0
        for part in self._parts(jobs):
            jobs_of_part, _ = part
            self._send_shared(part, waiters[at : at + len(jobs_of_part)], connection)
            at += len(jobs_of_part)

    def _parts(self, jobs: Sequence[NewJob]) -> Sequence[Chunk]:
        # Copies are waited for, and one wait is enough for all.
        if len(jobs) < 2 * _PART_MIN or self._confirmation is not None:
            return chunks(jobs, payload_bytes(jobs))
        count = -(-len(jobs) // (len(jobs) // _PART_MIN))
        cut = in_chunks(jobs, count)
        return [chunk for some in cut for chunk in chunks(some, payload_bytes(some))]

    def _send_shared(
        self, part: Chunk, waiters: Sequence[AddWaiter], connection: Connection
    ) -> None:
        jobs, size = part
        try:
            write = self._encoder.encode_ready(jobs)
            # Nothing may leave before all can be encoded.
            pieces = tuple(write.pieces())
        except Exception as error:  # noqa: BLE001 - in a callback of the loop no caller gets it
            self._send_apart(part, waiters, connection, error)
            return
        until_s = connection.loop.time() + self._limit_s
        shared = SharedWrite(write, size, waiters, self._terms, until_s)
        must_connect = self._confirmation is not None or not connection.is_open
        self._send(shared, None if must_connect else connection, pieces)

    def _send_apart(
        self, part: Chunk, waiters: Sequence[AddWaiter], connection: Connection, error: Exception
    ) -> None:
        """One of the jobs cannot be encoded, and nothing has left: only that one fails."""
        jobs, size = part
        if len(jobs) == 1:
            self._unconfirmed_bytes.free(size)
            answer(waiters, [error])
            return
        for job, waiter in zip(jobs, waiters, strict=True):
            self._send_shared(([job], len(job.payload)), [waiter], connection)

    def _send(
        self,
        unconfirmed: UnconfirmedWrite,
        connection: Connection | None,
        pieces: Pieces | None = None,
    ) -> None:
        """Send a write for the first time: now where that is possible, else in a task."""
        self._deadlines.watch(unconfirmed)
        if connection is None or not self._unconfirmed_jobs.try_enter(unconfirmed.count):
            self._follow(unconfirmed, self._enter_and_confirm(unconfirmed))
            return
        unconfirmed.is_inside = True
        write = unconfirmed.write
        write.may_be_done = True
        try:
            pieces = write.pieces() if pieces is None else pieces
            send_pieces(connection, pieces, partial(self._answered, unconfirmed))
        except Exception as error:  # noqa: BLE001 - in a callback of the loop no caller gets it
            self._leave(unconfirmed)
            unconfirmed.failed(error)

    def _answered(self, unconfirmed: UnconfirmedWrite, end: End) -> None:
        """The first send of a write has come to its end."""
        write = unconfirmed.write
        try:
            marks = self.accept(write, replies_of(end))
        except QueueFull as error:
            self._leave(unconfirmed)
            unconfirmed.failed(error)
        except StoreError as error:
            # Known before the next deadline passes: what a call gets depends on it.
            write.may_be_done = may_have_added(write, error)
            # A script that the server forgot was not run: as if nothing had been sent.
            unconfirmed.error = None if is_forgotten(error) else error
            if unconfirmed.is_unwanted:
                self._leave(unconfirmed)
                return
            # It stays inside: what may be sent again must be among the remembered ids.
            self._follow(unconfirmed, self._confirm(unconfirmed))
        except Exception as error:  # noqa: BLE001 - others wait behind us for their answers
            self._leave(unconfirmed)
            unconfirmed.failed(error)
        else:
            self._leave(unconfirmed)
            unconfirmed.confirmed(marks)

    def _leave(self, unconfirmed: UnconfirmedWrite) -> None:
        self._deadlines.forget(unconfirmed)
        if unconfirmed.is_inside:
            self._unconfirmed_jobs.leave(unconfirmed.count)
        self._unconfirmed_bytes.free(unconfirmed.size)

    def _follow(
        self,
        unconfirmed: UnconfirmedWrite,
        confirming: Coroutine[Any, Any, list[AddMark]],
    ) -> None:
        task = asyncio.get_running_loop().create_task(confirming, name="chasqui-confirm-adds")
        self._following.add(task)
        task.add_done_callback(partial(self._followed, unconfirmed))
        if isinstance(unconfirmed, BulkWrite):
            unconfirmed.waiter.add_done_callback(lambda _: self._abandon(unconfirmed, task))

    def _abandon(self, unconfirmed: BulkWrite, task: asyncio.Task[list[AddMark]]) -> None:
        """The only caller has gone, and its bytes may still be on their way to the server."""
        connection = self._reconnecting.current
        if connection is None or not unconfirmed.write.may_be_done:
            task.cancel()
        elif not task.done():
            connection.after_all_sent(task.cancel)

    def _followed(self, unconfirmed: UnconfirmedWrite, task: asyncio.Task[list[AddMark]]) -> None:
        self._following.discard(task)
        self._leave(unconfirmed)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            unconfirmed.confirmed(task.result())
        else:
            unconfirmed.failed(error)

    async def _enter_and_confirm(self, unconfirmed: UnconfirmedWrite) -> list[AddMark]:
        await self._unconfirmed_jobs.enter(unconfirmed.count)
        unconfirmed.is_inside = True
        return await self._confirm(unconfirmed)

    async def _confirm(self, unconfirmed: UnconfirmedWrite) -> list[AddMark]:
        """Send a write until the server has answered it, perhaps after a first send.

        Each send is encoded for the server of the connection that it leaves on.
        """
        while True:
            error = unconfirmed.error
            if error is not None:
                self.errors.raise_unless_resendable(unconfirmed, error)
                self._reconnecting.on_error(error)
                await pause(error)
            try:
                connection = await self._connection(unconfirmed)
            except StoreError as error:
                if not unconfirmed.deadline.waits:
                    raise self.errors.unsent(unconfirmed, error) from error.__cause__
                unconfirmed.error = error
                continue
            self._refit(unconfirmed)
            try:
                return await self._exchange(connection, unconfirmed.write)
            except (QueueFull, DurabilityNotMet):
                raise
            except StoreError as error:
                unconfirmed.error = error

    async def _connection(self, unconfirmed: UnconfirmedWrite) -> Connection:
        deadline = unconfirmed.deadline
        if unconfirmed.write.may_be_done:
            # To widen a memory is to clear it, and a resend needs what is in there.
            return await self._reconnecting.connection(
                within_s=deadline.left_s, waits=deadline.waits
            )
        return await self._connect(deadline)

    def _refit(self, unconfirmed: UnconfirmedWrite) -> None:
        """Leave out jobs whose callers know that they are not added, and suit the server."""
        if not unconfirmed.write.may_be_done:
            unconfirmed.leave_out_gone(self._encoder.encode_ready)
        unconfirmed.write = self._encoder.refitted(unconfirmed.write)

    async def _exchange(self, connection: Connection, write: AddWrite) -> list[AddMark]:
        was_done, write.may_be_done = write.may_be_done, True
        try:
            replies, confirmed = await self._ask(connection, write.pieces())
            if is_forgotten(replies[0]):
                pieces = ((write.request_with_text(), 1),)
                replies, confirmed = await self._ask(connection, pieces)
            marks = self.accept(write, replies)
        except StoreError as error:
            write.may_be_done = was_done or may_have_added(write, error)
            raise
        if confirmed is not None and self._confirmation is not None:
            # What was refused needs no copies, and never comes here.
            await self._confirmation.check(confirmed, ids_of(write.jobs))
        return marks

    async def _ask(
        self, connection: Connection, pieces: Pieces
    ) -> tuple[list[Reply], asyncio.Future[list[Reply]] | None]:
        """One round trip; a durability class asks for copies right behind the write."""
        confirmation = self._confirmation
        ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        block_ms = 0 if confirmation is None else confirmation.block_ms
        send_pieces(connection, pieces, partial(_set_unless_done, ended), block_ms=block_ms)
        confirmed = None if confirmation is None else confirmation.of_all_sent(connection)
        return replies_of(await ended), confirmed

    def accept(self, write: AddWrite, replies: list[Reply]) -> list[AddMark]:
        """The marks of a confirmed write; raises what the server refused."""
        marks = write.marks(replies)
        return self._encoder.refuse_full(write.jobs) if marks is None else marks


def send_pieces(
    connection: Connection, pieces: Pieces, on_end: OnEnd, *, block_ms: int = 0
) -> None:
    """Send each piece as soon as it is encoded; `on_end` gets all replies together.

    The caller is one that `Connection.check_caller` lets pass.
    """
    if isinstance(pieces, tuple) and len(pieces) == 1:
        ((request, reply_count),) = pieces
        connection.post(request, reply_count, on_end, block_ms=block_ms)
        return
    gathered = GatheredReplies(on_end)
    for request, reply_count in pieces:
        gathered.expect()
        connection.post(request, reply_count, gathered.add, block_ms=block_ms)
    gathered.all_sent()


def may_have_added(write: AddWrite, error: StoreError) -> bool:
    """Whether a send that ended like this may have added jobs, where none was added before."""
    # An error reply that names some of the jobs came with replies that added the others.
    return may_have_left(error) or 0 < len(error.job_ids) < len(write.jobs)


def _set_unless_done(ended: asyncio.Future[End], end: End) -> None:
    if not ended.done():
        ended.set_result(end)


# ── limits and deadlines ──────────────────────────────────────────────────────────────────────────


class UnconfirmedJobs:
    """Limits how many jobs are unconfirmed at once; to enter where there is room is an addition."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._inside = 0
        self._waiting: list[asyncio.Future[None]] = []

    def try_enter(self, count: int) -> bool:
        """Enter if there is room; a count above the maximum enters alone."""
        if self._inside and self._inside + count > self._size_max:
            return False
        self._inside += count
        return True

    async def enter(self, count: int) -> None:
        """Enter as soon as there is room."""
        while not self.try_enter(count):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def leave(self, count: int) -> None:
        self._inside -= count
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


# Calls whose time is over within this time are answered together.
_SWEEP_GAP_S = 0.02


class Deadlines:
    """Answers calls whose time is over.

    One timer serves all that is under way. While the server answers it finds nothing to do, and
    starts again once in the time that a call may take.
    """

    def __init__(self) -> None:
        self._under_way: dict[UnconfirmedWrite, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_at_s = inf

    def watch(self, write: UnconfirmedWrite) -> None:
        self._under_way[write] = None
        if write.first_s < self._sweep_at_s:
            self._sweep_at(write.first_s)

    def forget(self, write: UnconfirmedWrite) -> None:
        self._under_way.pop(write, None)

    def close(self) -> None:
        """Answer no more calls."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sweep_at_s = at_s
        self._timer = asyncio.get_running_loop().call_at(at_s, self._sweep)

    def _sweep(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._timer, self._sweep_at_s = None, inf
        for write in self._under_way:
            if write.first_s <= now_s:
                write.answer_late(now_s)
        next_s = min((write.first_s for write in self._under_way), default=inf)
        if next_s < inf:
            self._sweep_at(max(next_s, now_s + _SWEEP_GAP_S))
