"""Keeps a queue moving: leader locks, promotion of delayed jobs, and what the janitor cleans."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.model.snapshot import SILENT_MS_MAX, GroupUse, group_still_used
from chasquimq.store.net import script
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.store.net.connection import Connection, Part, Reply
    from chasquimq.store.net.reconnect import ReconnectingConnection

_BYTES_PER_PAGE_MAX = 1024 * 1024
_NO_TTL_MS = 1_000


class Lead(msgspec.Struct, frozen=True):
    """Which process leads, and if we do, what waits; times are of the server's clock."""

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
    # A lock that never runs out was left by a program that may take it back any time.
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
    """Leader locks and promotion of one queue, over a connection of its caller."""

    def __init__(
        self,
        queue: str,
        connection: ReconnectingConnection,
        *,
        bell: ReconnectingConnection | None = None,
        waiting_events_max: int = 0,
    ) -> None:
        """`waiting_events_max` caps the events stream; 0 writes no `waiting` events.

        `bell` is a connection for nothing but waiting; without one, rings are not noticed.
        """
        self._bell = bell
        self._keys = QueueKeys(queue)
        self._waiting_events_max = waiting_events_max
        self._connection = connection
        # `waiting` events that the server refused; their jobs were promoted all the same.
        self.dropped_count = 0
        # Delayed entries that could not be read and were buried.
        self.unreadable_count = 0

    @property
    def queue(self) -> str:
        return self._keys.queue

    @property
    def delayed_key(self) -> str:
        return self._keys.delayed

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
        moved, depth, lag_ms, bad, job_ids, dropped, now_ms, due_ms = await self._run(
            "promote_due",
            [keys.delayed, keys.stream, keys.dlq, keys.dix, keys.events],
            page_max,
            _BYTES_PER_PAGE_MAX,
            self._waiting_events_max,
        )
        self.dropped_count += dropped
        self.unreadable_count += bad
        # Made of bytes, because an id of another program need not be text.
        prefix = keys.didx("").encode()
        indexes = [prefix + job_id for job_id in job_ids if job_id]
        if indexes:
            # ChasquiMQ (Rust) indexes delayed jobs by key; a promoted one must not be cancelled.
            await self._run("unindex", [keys.delayed, *indexes])
        return Promoted(moved, depth, lag_ms, bad, now_ms, _due_ms(due_ms))

    async def dlq_len(self) -> int:
        """How many jobs were given up and lie in the DLQ."""
        return await self._connection.call("XLEN", self._keys.dlq)

    async def _run(self, name: str, keys: Sequence[str | bytes], *args: Part) -> Reply:
        connection = await self._connection.connection()
        try:
            return await script.run(connection, name, keys, *args)
        except StoreError as error:
            self._connection.on_error(error)
            raise


async def _has_rung(
    reconnecting: ReconnectingConnection, connection: Connection, bell: str, block_ms: int
) -> bool:
    try:
        return await connection.call("BLPOP", bell, block_ms // 1000, block_ms=block_ms) is not None
    except StoreError as error:
        reconnecting.on_error(error)
        raise


def _due_ms(found: int) -> float:
    return math.inf if found < 0 else found


_PAGE_MAX = 500
# Where hand-backs wait; it is empty most of the time and must stay.
_KEPT = b"returned"
# An entry of the index may be a little behind its job.
_INDEX_GRACE_MS = 1_000
# A turn ends before the same worker looks again.
_TURN_SHARE = 0.9


class JanitorStore:
    """The sweeping side of one group, over a connection of its caller."""

    def __init__(self, queue: str, group: str, connection: ReconnectingConnection) -> None:
        self._keys = QueueKeys(queue)
        self._group = group
        self._connection = connection

    @property
    def queue(self) -> str:
        return self._keys.queue

    async def take_turn(self, pause_ms: int) -> bool:
        """Whether no other worker has swept within that time."""
        ttl_ms = max(1, int(pause_ms * _TURN_SHARE))
        key = self._keys.janitor_turn
        return await self._connection.call("SET", key, "1", "NX", "PX", ttl_ms) is not None

    async def sweep_ghosts(self) -> int:
        """Forget pending entries whose bodies are gone; answers how many."""
        await self._sweep(self._keys.wake)
        return await self._sweep(self._keys.stream)

    async def reap_consumers(self, idle_ms_min: int) -> int:
        """Remove consumers that hold nothing and have been silent that long."""
        await self._reap(self._keys.wake, idle_ms_min)
        return await self._reap(self._keys.stream, idle_ms_min)

    async def sweep_index(self) -> int:
        """Forget index entries of delayed jobs that are gone; answers how many."""
        stale, cursor = 0, "0"
        while True:
            keys = [self._keys.delayed, self._keys.dix]
            found, after = await self._run("sweep_index", keys, cursor, _PAGE_MAX, _INDEX_GRACE_MS)
            stale, cursor = stale + found, after.decode()
            if cursor == "0":
                return stale

    async def remove_group(self, *, force: bool) -> GroupUse | None:
        """Remove the group; answers what used it, and None where there is none of that name.

        By force it goes although it is in use. What it held is delivered by the next group.

        Raises:
            StoreError: the group is in use, and stays.
        """
        args = (self._group, _KEPT, SILENT_MS_MAX, int(force))
        mark, *counts = await self._run("remove_group", [self._keys.stream], *args)
        if mark < 0:
            return None
        found = GroupUse(self._group, *counts)
        if not mark:
            raise group_still_used(self._keys.queue, found)
        with suppress(ServerRefused):  # no job waits in there
            await self._connection.call("XGROUP", "DESTROY", self._keys.wake, self._group)
        return found

    async def _sweep(self, stream: str) -> int:
        ghosts, at = 0, "-"
        while at:
            try:
                found, after = await self._run("sweep", [stream], self._group, at, _PAGE_MAX)
            except ServerRefused as error:
                return self._pass_over(stream, error)
            ghosts, at = ghosts + found, after.decode()
        return ghosts

    async def _reap(self, stream: str, idle_ms_min: int) -> int:
        reaped = 0
        for name in await self._silent_consumers(stream, idle_ms_min):
            args = (self._group, name, idle_ms_min)
            reaped += await self._run("reap_consumer", [stream], *args) == 1
        return reaped

    async def _silent_consumers(self, stream: str, idle_ms_min: int) -> list[bytes]:
        try:
            rows = await self._connection.call("XINFO", "CONSUMERS", stream, self._group)
        except ServerRefused as error:
            self._pass_over(stream, error)
            return []
        facts = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        return [
            one[b"name"]
            for one in facts
            if one[b"name"] != _KEPT and not one[b"pending"] and one[b"idle"] >= idle_ms_min
        ]

    def _pass_over(self, stream: str, error: ServerRefused) -> int:
        """The stream that wakes workers may not be there; that of the jobs must be."""
        if stream != self._keys.wake:
            raise error
        return 0

    async def _run(self, name: str, keys: Sequence[str], *args: Part) -> Reply:
        return await script.run(await self._connection.connection(), name, keys, *args)
