"""Confirms that writes are on disk or on replicas; writes sent together share one wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.errors import AbilityMissing, ConnectionLost, DurabilityNotMet, StoreError
from chasquimq.store.net.connection import Connection, Reply, pack
from chasquimq.store.net.errors import about, is_worth_asking_again
from chasquimq.store.net.script import script
from chasquimq.store.producer.writes import DelayWrite, ScriptWrite

if TYPE_CHECKING:
    from chasquimq.model.job_options import Durability

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
        # One that ended without asking must not answer for those that come after it.
        if self._next is not None and not self._next.done():
            return self._next
        if self._under_way is None or self._under_way.done():
            self._under_way = self._ask(connection)
            return self._under_way
        self._next = asyncio.create_task(self._ask_after(self._under_way, connection))
        # The callers may be gone by then.
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
        await _load_scripts(connection)
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
                # Others share this answer, and each gets it about its own jobs.
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
        # A caller that gives up must not take the answer from the others.
        return await asyncio.shield(confirmed)
    except ConnectionLost as lost:
        # Whether the question left or not: the write has.
        raise ConnectionLost(str(lost)) from lost


async def _load_scripts(connection: Connection) -> None:
    # A write that the server answers with "which script?" would be waited for all the same.
    names = (ScriptWrite.script_name, DelayWrite.script_name)
    request = b"".join([pack(("SCRIPT", "LOAD", script(name).text)) for name in names])
    # A user that may not load scripts sends their text with the first call.
    await connection.send(request, len(names))
