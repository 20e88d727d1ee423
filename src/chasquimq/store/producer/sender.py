"""Asks the server to wait until writes are on disk or on replicas; those at once share a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from chasquimq.errors import (
    AbilityMissing,
    ConnectionLost,
    DurabilityNotMet,
    QueueFull,
    ServerUnreachable,
    StoreError,
)
from chasquimq.store.net.connection import Connection, Reply, pack
from chasquimq.store.net.errors import about, is_worth_asking_again, is_worth_resending
from chasquimq.store.net.reconnect import Link, pause
from chasquimq.store.net.script import is_forgotten, script
from chasquimq.store.producer.writes import (
    AddDeadline,
    AddMark,
    AddWrite,
    Answers,
    DelayWrite,
    PendingWrite,
    Pieces,
    ScriptWrite,
    SentWrite,
    send_pieces,
)

if TYPE_CHECKING:
    from chasquimq.model.job_options import Durability
    from chasquimq.settings import ProducerSettings
    from chasquimq.wire.new_job import NewJob

_WAIT_MS = 2_000
_MARK_TTL_S = 60


class Confirmation:
    """The commands that follow a write of one durability class, and what they must answer.

    A server that waits executes nothing else of that connection, and then confirms all that
    came before. So one wait is under way at a time, and what is sent meanwhile shares the next.
    """

    # A write may stand behind a wait, and so may the next wait.
    block_ms = 2 * _WAIT_MS

    def __init__(self, durability: Durability, mark_key: str) -> None:
        self._durability = durability
        self._mark_key = mark_key
        self._connection: Connection | None = None
        self._under_way: asyncio.Future[list[Reply]] | None = None
        self._next: asyncio.Task[list[Reply]] | None = None

    def of_all_sent(self, connection: Connection) -> asyncio.Future[list[Reply]]:
        """The answer to a wait for all that was sent up to now, for `check`."""
        if connection is not self._connection:
            self._connection, self._under_way, self._next = connection, None, None
        # One that ended without asking must not answer for those who come after it.
        if self._next is not None and not self._next.done():
            return self._next
        if self._under_way is None or self._under_way.done():
            self._under_way = self._ask(connection)
            return self._under_way
        self._next = asyncio.create_task(self._ask_after(self._under_way, connection))
        # Whoever wanted to know may be gone by then.
        self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._next

    async def _ask_after(
        self, earlier: asyncio.Future[list[Reply]], connection: Connection
    ) -> list[Reply]:
        await asyncio.wait([earlier])
        answer = self._ask(connection)
        if connection is self._connection:
            self._under_way, self._next = answer, None
        return await answer

    def _ask(self, connection: Connection) -> asyncio.Future[list[Reply]]:
        return connection.send(self._request, 2, block_ms=self.block_ms)

    @property
    def _request(self) -> bytes:
        # The server waits only for changes of this connection, and a resent write changes nothing.
        change = pack(("SET", self._mark_key, 1, "EX", _MARK_TTL_S))
        if self._durability.is_on_disk:
            return change + pack(("WAITAOF", 1, 0, _WAIT_MS))
        return change + pack(("WAIT", self._durability.replica_count, _WAIT_MS))

    async def probe(self, connection: Connection) -> None:
        """Refuse a class that the server cannot keep, before anything is written."""
        await _teach(connection)
        if not self._durability.is_on_disk:
            return
        (reply,) = await connection.send(pack(("WAITAOF", 1, 0, 1)))
        if is_worth_asking_again(reply):
            raise reply
        if isinstance(reply, StoreError):
            raise AbilityMissing(
                'durability "fsync" must have a server of Redis 7.2 or newer with appendonly on, '
                f"this one says: {reply}; turn appendonly on, or choose another class"
            )

    async def check(self, confirmed: asyncio.Future[list[Reply]], job_ids: Sequence[str]) -> None:
        """Raise unless enough copies confirmed the write."""
        replies = await _shared(confirmed)
        for reply in replies:
            if isinstance(reply, StoreError):
                # Others share this answer, and each is told about its own jobs.
                raise about(reply, job_ids)
        reply = replies[-1]
        found = reply[0] if self._durability.is_on_disk else reply
        needed = 1 if self._durability.is_on_disk else self._durability.replica_count
        if found < needed:
            raise DurabilityNotMet(
                f'durability "{self._durability}" must be confirmed {needed} times within '
                f"{_WAIT_MS} ms, got {found}; the jobs are written, but may not survive a failure",
                job_ids,
            )


async def _shared(confirmed: asyncio.Future[list[Reply]]) -> list[Reply]:
    try:
        # One who gives up must not take the answer from the others.
        return await asyncio.shield(confirmed)
    except ConnectionLost as lost:
        # Whether the question left or not: the write has.
        raise ConnectionLost(str(lost)) from lost


async def _teach(connection: Connection) -> None:
    # A write that the server answers with "which script?" would be waited for all the same.
    names = (ScriptWrite.script_name, DelayWrite.script_name)
    request = b"".join([pack(("SCRIPT", "LOAD", script(name).text)) for name in names])
    # Who may not load scripts teaches them with the first call.
    await connection.send(request, len(names))


_NOT_ADDED = "nothing was added: add again, or give it longer with add_timeout_ms"
_OWN_IDS = "it may be added or not: adding it again under the same job_id is safe"
_FRESH_IDS = (
    "it may be added or not: look for it with get_job() before you add it again, and add with a "
    "job_id of your own where adding again must be safe"
)


class AddSender:
    """One write at a time, as often as trouble asks for it and the promises allow."""

    def __init__(
        self,
        queue: str,
        settings: ProducerSettings,
        link: Link,
        confirmation: Confirmation | None,
        prepared: Callable[[AddDeadline], Awaitable[Connection]],
        fit: Callable[[PendingWrite], None],
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._link = link
        self._confirmation = confirmation
        self._prepared = prepared
        self._fit = fit

    async def confirm(self, pending: PendingWrite) -> list[AddMark]:
        """Send a write until the server has answered it, perhaps after a first send.

        Each send is encoded for the server of the connection that it leaves on.
        """
        while True:
            trouble = pending.trouble
            if trouble is not None:
                self._raise_unless_resendable(pending, trouble)
                self._link.heed(trouble)
                await pause(trouble)
            try:
                connection = await self._connection(pending)
            except StoreError as error:
                if not pending.deadline.waits:
                    raise self.unsent(pending, error) from error.__cause__
                pending.trouble = error
                continue
            self._fit(pending)
            try:
                return await self._exchange(connection, pending.write)
            except (QueueFull, DurabilityNotMet):
                raise
            except StoreError as error:
                pending.trouble = error

    async def _connection(self, pending: PendingWrite) -> Connection:
        deadline = pending.deadline
        if pending.write.may_be_done:
            # To widen a memory is to clear it, and a resend needs what is in there.
            return await self._link.connection(within_s=left_s(deadline), waits=deadline.waits)
        return await self._prepared(deadline)

    async def hear(self, sent: SentWrite) -> list[AddMark] | None:
        """What became of a write that has left; None: it is to be confirmed."""
        write = sent.write
        try:
            replies = await _replies(sent.answers)
            # A script that the server forgot was not run: as if nothing had been sent.
            if not is_forgotten(replies[0]):
                return self.accept(write, replies)
            write.may_be_done = False
        except QueueFull:
            raise
        except StoreError as error:
            write.may_be_done = may_have_added(write, error)
            sent.trouble = error
        return None

    def accept(self, write: AddWrite, replies: list[Reply]) -> list[AddMark]:
        """The marks of a confirmed write; raises what the server refused."""
        marks = write.marks(replies)
        if marks is not None:
            return marks
        cap = self._settings.max_stream_len
        assert cap is not None, "only a capped queue can be full"
        raise QueueFull(self._queue, cap, ids_of(write.jobs))

    def too_late(
        self, jobs: Sequence[NewJob], limit_ms: int, pending: PendingWrite | None = None
    ) -> StoreError:
        """What a call hears whose time is over; None: nothing of it was ever sent."""
        may_be_done = pending is not None and pending.write.may_be_done
        trouble = None if pending is None else pending.trouble
        if trouble is not None and not may_be_done and not isinstance(trouble, ConnectionLost):
            # It is there, and says itself why it cannot take the jobs yet.
            return about(trouble, ids_of(jobs))
        rule = f"within {limit_ms / 1000:g} s (add_timeout_ms) and did not"
        lost = self._lost(jobs, rule, may_be_done=may_be_done)
        lost.__cause__ = trouble or self._link.refusal
        return lost

    def unsent(self, pending: PendingWrite, error: StoreError) -> StoreError:
        """No connection could be had for a write, this time."""
        write = pending.write
        if isinstance(error, ServerUnreachable) and not write.may_be_done:
            return about(error, ids_of(write.jobs))
        return self._ended(write, error)

    async def _exchange(self, connection: Connection, write: AddWrite) -> list[AddMark]:
        was_done, write.may_be_done = write.may_be_done, True
        try:
            replies, confirmed = await self._send(connection, write.pieces())
            if is_forgotten(replies[0]):
                pieces = [(write.request_with_text(), 1)]
                replies, confirmed = await self._send(connection, pieces)
            marks = self.accept(write, replies)
        except StoreError as trouble:
            write.may_be_done = was_done or may_have_added(write, trouble)
            raise
        if confirmed is not None and self._confirmation is not None:
            # What was refused needs no copies, and never comes here.
            await self._confirmation.check(confirmed, ids_of(write.jobs))
        return marks

    async def _send(
        self, connection: Connection, pieces: Pieces
    ) -> tuple[list[Reply], asyncio.Future[list[Reply]] | None]:
        """One round trip; a durability class asks for copies right behind the write."""
        confirmation = self._confirmation
        if confirmation is None:
            return await _replies(send_pieces(connection, pieces)), None
        answers = send_pieces(connection, pieces, block_ms=confirmation.block_ms)
        confirmed = confirmation.of_all_sent(connection)
        return await _replies(answers), confirmed

    def _raise_unless_resendable(self, pending: PendingWrite, trouble: StoreError) -> None:
        write, deadline = pending.write, pending.deadline
        is_lost = isinstance(trouble, ConnectionLost)
        if left_s(deadline) <= 0 and is_lost:
            late = self.too_late(write.jobs, deadline.limit_ms, pending)
            raise late from late.__cause__
        # An error reply to a write that no one remembers may follow jobs that were added.
        may_resend = deadline.waits or (is_lost and not write.may_be_done)
        may_go_on = left_s(deadline) > 0 and may_resend and not self._link.is_closed
        if not may_go_on or not (is_lost or is_worth_resending(trouble)):
            raise self._ended(write, trouble) from trouble.__cause__

    def _ended(self, write: AddWrite, trouble: StoreError) -> StoreError:
        """The same trouble for the callers whose jobs these are, with its true outcome."""
        if not isinstance(trouble, ConnectionLost):
            return trouble
        lost = self._lost(write.jobs, f"and did not ({trouble})", may_be_done=write.may_be_done)
        lost.__cause__ = trouble
        return lost

    def _lost(self, jobs: Sequence[NewJob], rule: str, *, may_be_done: bool) -> ConnectionLost:
        hint = _NOT_ADDED
        if may_be_done:
            hint = _OWN_IDS if all(job.digest for job in jobs) else _FRESH_IDS
        return ConnectionLost(
            f"the server at {self._link.address} must confirm an add {rule}; {hint}",
            job_ids=ids_of(jobs),
            outcome="unknown" if may_be_done else "not_done",
        )


def left_s(deadline: AddDeadline) -> float:
    """How much of the time is left."""
    return deadline.at_s - asyncio.get_running_loop().time()


def ids_of(*parts: Sequence[NewJob]) -> list[str]:
    return [job.job_id for part in parts for job in part]


async def _replies(answers: Answers) -> list[Reply]:
    return [reply for answer in answers for reply in await answer]


def may_have_added(write: AddWrite, trouble: StoreError) -> bool:
    """Whether a send that ended like this may have added jobs, where none was added before."""
    # An error reply that names some of the jobs came with replies that added the others.
    return may_have_left(trouble) or 0 < len(trouble.job_ids) < len(write.jobs)


def may_have_left(trouble: StoreError) -> bool:
    """Whether what was asked may have been done all the same."""
    return isinstance(trouble, ConnectionLost) and trouble.outcome == "unknown"
