"""Reads what finished jobs left behind: results and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from chasquimq.errors import DecodeError, StoreError
from chasquimq.model.chunks import in_chunks
from chasquimq.store.net.connection import Reply, pack
from chasquimq.store.net.errors import Action, action_for
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.outcome import StoredOutcome, decode_outcome
from chasquimq.wire.payload import decode_payload

if TYPE_CHECKING:
    from chasquimq.store.net.reconnect import ReconnectingConnection

_IDS_PER_CALL_MAX = 500


class Leftovers(msgspec.Struct, frozen=True):
    """What is kept of one job; both None: not finished, or nothing was kept."""

    outcome: StoredOutcome | None
    result: bytes | None

    def value(self) -> Any:
        """The stored return value; None when there is none."""
        return None if self.result is None else decode_payload(self.result)


class ResultStore:
    """Reads results of one queue, over a connection of its caller."""

    def __init__(self, queue: str, connection: ReconnectingConnection) -> None:
        self._keys = QueueKeys(queue)
        self._connection = connection

    @property
    def queue(self) -> str:
        return self._keys.queue

    @property
    def was_reached(self) -> bool:
        return self._connection.was_open

    async def leftovers(self, job_ids: Sequence[str]) -> list[Leftovers]:
        """Outcome and result of each job, in the order of the ids."""
        found: list[Leftovers] = []
        for some in in_chunks(job_ids, _IDS_PER_CALL_MAX):
            found += await self._some(some)
        return found

    def may_heal(self, error: StoreError) -> bool:
        """Whether asking again can help; where no server was ever found, that is raised."""
        self._connection.on_error(error)
        action = action_for(error)
        if action is Action.REDIAL and not self.was_reached:
            return False
        return action is not Action.RAISE

    async def _some(self, job_ids: Sequence[str]) -> list[Leftovers]:
        outcomes = pack(("MGET", *[self._keys.outcome(job_id) for job_id in job_ids]))
        results = pack(("MGET", *[self._keys.result(job_id) for job_id in job_ids]))
        replies = await self._connection.ask(outcomes + results, 2)
        return [
            Leftovers(_outcome(outcome), result)
            for outcome, result in zip(*map(_rows, replies), strict=True)
        ]


def _rows(reply: Reply) -> list[bytes | None]:
    if isinstance(reply, StoreError):
        raise reply
    return reply


def _outcome(raw: bytes | None) -> StoredOutcome | None:
    if raw is None:
        return None
    try:
        return decode_outcome(raw)
    except DecodeError:
        # Not one of ours: it says nothing about the job.
        return None
