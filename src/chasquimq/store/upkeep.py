"""What keeps a queue moving without any job of its own: locks and promotion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import StoreError
from chasquimq.store import script
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.store.connection import Part, Reply
    from chasquimq.store.link import Link

_BYTES_PER_PAGE_MAX = 1024 * 1024


class Promoted(msgspec.Struct, frozen=True):
    """What one promotion did."""

    moved: int
    depth: int
    oldest_lag_ms: int
    bad: int

    @property
    def is_full(self) -> bool:
        """Whether more may be due already."""
        return self.oldest_lag_ms > 0


class UpkeepStore:
    """Leader locks and promotion of one queue, over somebody's link."""

    def __init__(self, queue: str, link: Link, *, waiting_events_max: int = 0) -> None:
        """`waiting_events_max` caps the events stream; 0 writes no `waiting` events."""
        self._keys = QueueKeys(queue)
        self._waiting_events_max = waiting_events_max
        self._link = link
        # `waiting` events that the server refused; their jobs were promoted all the same.
        self.dropped_count = 0

    async def acquire_lock(self, holder: str, ttl_s: int) -> bool:
        return await self._run("acquire_lock", [self._keys.promoter_lock], holder, ttl_s) == 1

    async def release_lock(self, holder: str) -> bool:
        return await self._run("release_lock", [self._keys.promoter_lock], holder) == 1

    async def promote(self, page_max: int) -> Promoted:
        """Move due jobs to the stream, at most a page."""
        keys = self._keys
        moved, depth, lag_ms, bad, job_ids, untold = await self._run(
            "promote_due",
            [keys.delayed, keys.stream, keys.dlq, keys.dix, keys.events],
            page_max,
            _BYTES_PER_PAGE_MAX,
            self._waiting_events_max,
        )
        self.dropped_count += untold
        # Made of bytes, because a stranger's id need not be text.
        prefix = keys.didx("").encode()
        indexes = [prefix + job_id for job_id in job_ids if job_id]
        if indexes:
            # The original indexes delayed jobs by key; a promoted one must not be cancelled.
            await self._run("unindex", [keys.delayed, *indexes])
        return Promoted(moved, depth, lag_ms, bad)

    async def dlq_len(self) -> int:
        """How many jobs were given up and lie in the DLQ."""
        return await self._link.call("XLEN", self._keys.dlq)

    async def _run(self, name: str, keys: Sequence[str | bytes], *args: Part) -> Reply:
        connection = await self._link.connection()
        try:
            return await script.run(connection, name, keys, *args)
        except StoreError as error:
            self._link.heed(error)
            raise
