"""Asks the server to wait until a write is on disk or on replicas, once for each write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.errors import AbilityMissing, DurabilityNotMet, StoreError
from chasquimq.store.add_write import ScriptWrite
from chasquimq.store.connection import Connection, Reply, pack
from chasquimq.store.delay_write import DelayWrite
from chasquimq.store.script import script
from chasquimq.store.server_errors import is_worth_asking_again

if TYPE_CHECKING:
    from chasquimq.model.durability import Durability

_WAIT_MS = 2_000
_MARK_TTL_S = 60


class Confirmation:
    """The commands that follow a write of one durability class, and what they must answer."""

    reply_count = 2

    def __init__(self, durability: Durability, mark_key: str) -> None:
        self._durability = durability
        self._mark_key = mark_key
        self.block_ms = _WAIT_MS

    @property
    def request(self) -> bytes:
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

    def check(self, replies: Sequence[Reply], job_ids: Sequence[str]) -> None:
        """Raise unless enough copies confirmed the write."""
        for reply in replies:
            if isinstance(reply, StoreError):
                raise reply
        reply = replies[-1]
        found = reply[0] if self._durability.is_on_disk else reply
        needed = 1 if self._durability.is_on_disk else self._durability.replica_count
        if found < needed:
            raise DurabilityNotMet(
                f'durability "{self._durability}" must be confirmed {needed} times within '
                f"{_WAIT_MS} ms, got {found}; the jobs are written, but may not survive a failure",
                job_ids,
            )


async def _teach(connection: Connection) -> None:
    # A write that the server answers with "which script?" would be waited for all the same.
    names = (ScriptWrite.script_name, DelayWrite.script_name)
    request = b"".join([pack(("SCRIPT", "LOAD", script(name).text)) for name in names])
    # Who may not load scripts teaches them with the first call.
    await connection.send(request, len(names))
