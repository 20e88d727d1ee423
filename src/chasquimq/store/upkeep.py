"""What keeps a queue moving without any job of its own: locks, promotion and its bell."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import StoreError
from chasquimq.model.log import get_logger
from chasquimq.store import script
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.store.connection import Connection, Part, Reply
    from chasquimq.store.link import Link

logger = get_logger(__name__)
_BYTES_PER_PAGE_MAX = 1024 * 1024
_NO_TTL_MS = 1_000


class Lead(msgspec.Struct, frozen=True):
    """Who leads, and if we do, what waits; times are of the server's clock."""

    is_ours: bool
    # When the lock may be free, where another has it.
    free_in_ms: int = 0
    now_ms: int = 0
    due_ms: float = math.inf
    depth: int = 0

    @property
    def due_in_ms(self) -> float:
        """When the first is due; 0: now."""
        return max(0.0, self.due_ms - self.now_ms)

    @property
    def oldest_lag_ms(self) -> int:
        return int(max(0.0, self.now_ms - self.due_ms))


def read_lead(reply: Reply) -> Lead:
    """The answer of the script that takes or keeps a lock."""
    is_ours, *seen = reply
    if is_ours:
        now_ms, due_ms, depth = seen
        return Lead(True, 0, now_ms, _due_ms(due_ms), depth)
    # A lock that never runs out was left by somebody who may take it back any time.
    return Lead(False, seen[0] if seen[0] >= 0 else _NO_TTL_MS)


class Promoted(msgspec.Struct, frozen=True):
    """What one promotion did, and when the next is due by the server's clock."""

    moved: int
    depth: int
    oldest_lag_ms: int
    bad: int
    now_ms: int = 0
    due_ms: float = math.inf

    @property
    def due_in_ms(self) -> float:
        return max(0.0, self.due_ms - self.now_ms)

    @property
    def is_full(self) -> bool:
        """Whether more may be due already."""
        return self.oldest_lag_ms > 0


class UpkeepStore:
    """Leader locks and promotion of one queue, over somebody's link."""

    def __init__(
        self, queue: str, link: Link, *, bell: Link | None = None, waiting_events_max: int = 0
    ) -> None:
        """`waiting_events_max` caps the events stream; 0 writes no `waiting` events.

        `bell` is a link for nothing but waiting; without one, rings are not heard.
        """
        self._bell = bell
        self._keys = QueueKeys(queue)
        self._waiting_events_max = waiting_events_max
        self._link = link
        # `waiting` events that the server refused; their jobs were promoted all the same.
        self.dropped_count = 0

    async def lead(self, holder: str, ttl_s: int) -> Lead:
        keys = [self._keys.promoter_lock, self._keys.delayed]
        return read_lead(await self._run("lead", keys, holder, ttl_s))

    async def release_lock(self, holder: str) -> bool:
        keys = [self._keys.promoter_lock]
        return await self._run("release_lock", keys, holder, self._keys.wake) == 1

    async def listen(self, block_ms: int) -> Awaitable[bool]:
        """Wait for the bell; what is answered says whether it rang in time."""
        if self._bell is None:
            raise StoreError("a bell needs a connection of its own, found none")
        connection = await self._bell.connection()
        return _has_rung(self._bell, connection, self._keys.bell, block_ms)

    async def hang_up_bell(self) -> None:
        if self._bell is not None:
            await self._bell.hang_up()

    async def close(self) -> None:
        """Close what only this store uses."""
        if self._bell is not None:
            await self._bell.close()

    async def promote(self, page_max: int) -> Promoted:
        """Move due jobs to the stream, at most a page."""
        keys = self._keys
        moved, depth, lag_ms, bad, job_ids, untold, now_ms, due_ms = await self._run(
            "promote_due",
            [keys.delayed, keys.stream, keys.dlq, keys.dix, keys.events],
            page_max,
            _BYTES_PER_PAGE_MAX,
            self._waiting_events_max,
        )
        self.dropped_count += untold
        if bad:
            self._log_bad(bad)
        # Made of bytes, because a stranger's id need not be text.
        prefix = keys.didx("").encode()
        indexes = [prefix + job_id for job_id in job_ids if job_id]
        if indexes:
            # The original indexes delayed jobs by key; a promoted one must not be cancelled.
            await self._run("unindex", [keys.delayed, *indexes])
        return Promoted(moved, depth, lag_ms, bad, now_ms, _due_ms(due_ms))

    def _log_bad(self, count: int) -> None:
        queue = self._keys.queue
        logger.warning(
            "%d delayed entries of queue %s cannot be read and are buried as malformed_delayed; "
            "`chasqui dlq peek %s` shows them, look for what else writes to the key %s",
            count, queue, queue, self._keys.delayed,
            extra={"queue": queue, "reason": "malformed_delayed", "count": count},
        )  # fmt: skip

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


async def _has_rung(link: Link, connection: Connection, bell: str, block_ms: int) -> bool:
    try:
        return await connection.call("BLPOP", bell, block_ms // 1000, block_ms=block_ms) is not None
    except StoreError as error:
        link.heed(error)
        raise


def _due_ms(found: int) -> float:
    return math.inf if found < 0 else found
