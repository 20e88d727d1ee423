"""Sends writes of adds until the server has answered them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from chasquimq.errors import ConnectionLost, DurabilityNotMet, QueueFull, StoreError
from chasquimq.store.add_write import AddMark, AddWrite, Answers, Pieces, Sent, send_pieces
from chasquimq.store.link import Link, pause
from chasquimq.store.script import is_forgotten
from chasquimq.store.server_errors import is_worth_resending

if TYPE_CHECKING:
    from chasquimq.settings import ProducerSettings
    from chasquimq.store.confirming import Confirmation
    from chasquimq.store.connection import Connection, Reply
    from chasquimq.wire.new_job import NewJob


class AddSender:
    """One write at a time, as often as trouble asks for it and the promises allow."""

    def __init__(
        self,
        queue: str,
        settings: ProducerSettings,
        link: Link,
        confirmation: Confirmation | None,
        prepared: Callable[[float], Awaitable[Connection]],
        fit: Callable[[AddWrite], AddWrite],
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._link = link
        self._confirmation = confirmation
        self._prepared = prepared
        self._fit = fit

    async def confirm(self, write: AddWrite, trouble: StoreError | None = None) -> list[AddMark]:
        """Send a write until the server has answered it; `trouble` is how a first send ended.

        Each send is encoded for the server of the connection that it leaves on.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.resend_within_ms / 1000
        while True:
            if trouble is not None:
                write.may_be_done = write.may_be_done or _may_have_added(write, trouble)
                self._raise_unless_resendable(write, trouble, until - loop.time())
                self._link.heed(trouble)
                await pause(trouble)
            try:
                connection = await self._connection(write, max(0.05, until - loop.time()))
            except StoreError as error:
                trouble = error
                continue
            write = self._fit(write)
            try:
                return self.accept(write, await self._exchange(connection, write))
            except (QueueFull, DurabilityNotMet):
                raise
            except StoreError as error:
                trouble = error

    async def _connection(self, write: AddWrite, within_s: float) -> Connection:
        if write.may_be_done:
            # To widen a memory is to clear it, and a resend needs what is in there.
            return await self._link.connection(within_s=within_s)
        return await self._prepared(within_s)

    async def confirm_sent(self, sent: Sent) -> list[AddMark]:
        """Hear of a write that has left; only after trouble it is sent again."""
        trouble = None
        try:
            replies = await _replies(sent.answers)
            # A script that the server forgot was not run: as if nothing had been sent.
            if not is_forgotten(replies[0]):
                return self.accept(sent.write, replies)
        except QueueFull:
            raise
        except StoreError as error:
            trouble = error
        return await self.confirm(sent.write, trouble)

    def accept(self, write: AddWrite, replies: list[Reply]) -> list[AddMark]:
        """The marks of a confirmed write; raises what the server refused."""
        marks = write.marks(replies)
        if marks is not None:
            return marks
        cap = self._settings.max_stream_len
        assert cap is not None, "only a capped queue can be full"
        raise QueueFull(self._queue, cap, ids_of(write.jobs))

    async def _exchange(self, connection: Connection, write: AddWrite) -> list[Reply]:
        replies = await self._send(connection, write.pieces(), write)
        if is_forgotten(replies[0]):
            replies = await self._send(connection, [(write.request_with_text(), 1)], write)
        return replies

    async def _send(self, connection: Connection, pieces: Pieces, write: AddWrite) -> list[Reply]:
        """One round trip; a durability class asks for copies right behind the write."""
        confirmation = self._confirmation
        if confirmation is None:
            return await _replies(send_pieces(connection, pieces))
        answers = send_pieces(connection, pieces, block_ms=confirmation.block_ms)
        confirmed = confirmation.of_all_sent(connection)
        replies = await _replies(answers)
        if not any(isinstance(reply, StoreError) for reply in replies):
            # What was refused needs no copies.
            self.accept(write, replies)
            write.may_be_done = True
            await confirmation.check(confirmed, ids_of(write.jobs))
        return replies

    def _raise_unless_resendable(self, write: AddWrite, trouble: StoreError, left_s: float) -> None:
        is_lost = isinstance(trouble, ConnectionLost)
        # An error reply to a write that no one remembers may follow jobs that were added.
        may_resend = self._settings.resend or (is_lost and not write.may_be_done)
        may_go_on = left_s > 0 and may_resend and not self._link.is_closed
        if may_go_on and (is_lost or is_worth_resending(trouble)):
            return
        if is_lost:
            raise ConnectionLost(
                str(trouble),
                job_ids=ids_of(write.jobs),
                outcome="unknown" if write.may_be_done else "not_done",
            ) from trouble
        raise trouble


def ids_of(*parts: Sequence[NewJob]) -> list[str]:
    return [job.job_id for part in parts for job in part]


async def _replies(answers: Answers) -> list[Reply]:
    return [reply for answer in answers for reply in await answer]


def _may_have_added(write: AddWrite, trouble: StoreError) -> bool:
    # An error reply that names some of the jobs came with replies that added the others.
    return may_have_left(trouble) or 0 < len(trouble.job_ids) < len(write.jobs)


def may_have_left(trouble: StoreError) -> bool:
    """Whether what was asked may have been done all the same."""
    return isinstance(trouble, ConnectionLost) and trouble.outcome == "unknown"
