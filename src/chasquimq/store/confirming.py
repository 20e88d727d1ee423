"""Asks the server to wait until a write is on disk or on replicas, once for each write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.errors import AbilityMissing, DurabilityNotMet, StoreError
from chasquimq.store.connection import Connection, Reply, pack

if TYPE_CHECKING:
    from chasquimq.model.durability import Durability

_WAIT_MS = 2_000


class Confirmation:
    """The command that follows a write of one durability class, and what its reply must be."""

    def __init__(self, durability: Durability) -> None:
        self._durability = durability
        self.block_ms = _WAIT_MS

    @property
    def request(self) -> bytes:
        if self._durability.is_on_disk:
            return pack(("WAITAOF", 1, 0, _WAIT_MS))
        return pack(("WAIT", self._durability.replica_count, _WAIT_MS))

    async def probe(self, connection: Connection) -> None:
        """Refuse a class that the server cannot keep, before anything is written."""
        if not self._durability.is_on_disk:
            return
        (reply,) = await connection.send(pack(("WAITAOF", 1, 0, 1)))
        if isinstance(reply, StoreError):
            raise AbilityMissing(
                'durability "fsync" must have a server of Redis 7.2 or newer with appendonly on, '
                f"this one says: {reply}; turn appendonly on, or choose another class"
            )

    def check(self, reply: Reply, job_ids: Sequence[str]) -> None:
        """Raise unless enough copies confirmed the write."""
        if isinstance(reply, StoreError):
            raise reply
        found = reply[0] if self._durability.is_on_disk else reply
        needed = 1 if self._durability.is_on_disk else self._durability.replica_count
        if found < needed:
            raise DurabilityNotMet(
                f'durability "{self._durability}" must be confirmed {needed} times within '
                f"{_WAIT_MS} ms, got {found}; the jobs are written, but may not survive a failure",
                job_ids,
            )
