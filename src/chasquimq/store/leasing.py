"""Renews leases on a socket of its own, for the thread that does nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chasquimq.store.blocking import BlockingConnection
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings

_IDS_PER_CALL_MAX = 500
_PENDING_MAX = 10_000


class LeaseStore:
    """Blocking on purpose: a busy event loop must not stop renewals."""

    def __init__(
        self,
        queue: str,
        group: str,
        consumer: str,
        connection: ConnectionSettings,
        timeout_ms: int,
    ) -> None:
        self._head = (group, consumer)
        self._keys = [QueueKeys(queue).stream]
        # A renewal that takes longer than the pause between two is of no use.
        hasty = replace(
            connection,
            connect_timeout_ms=min(timeout_ms, connection.connect_timeout_ms),
            command_timeout_ms=min(timeout_ms, connection.command_timeout_ms),
        )
        self._connection = BlockingConnection(hasty, name="chasqui-lease")

    def pending(self) -> list[bytes]:
        """Whatever the server thinks this consumer holds."""
        group, consumer = self._head
        rows = self._connection.call(
            "XPENDING", self._keys[0], group, "-", "+", _PENDING_MAX, consumer
        )
        return [row[0] for row in rows]

    def renew(self, entry_ids: Collection[bytes]) -> list[bytes]:
        """Renew what is still ours; answers the ids that are not."""
        lost: list[bytes] = []
        for chunk in _chunks(sorted(entry_ids, key=_id_order)):
            lost += self._connection.run("renew", self._keys, *self._head, *chunk)
        return lost

    def close(self) -> None:
        self._connection.close()


def _id_order(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.partition(b"-")
    return int(ms), int(seq)


def _chunks(entry_ids: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for at in range(0, len(entry_ids), _IDS_PER_CALL_MAX):
        yield entry_ids[at : at + _IDS_PER_CALL_MAX]
