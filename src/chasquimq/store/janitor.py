"""Finds and removes what nobody will ever ask for again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from chasquimq.errors import ServerRefused
from chasquimq.model.group_use import SILENT_MS_MAX, GroupUse, still_used
from chasquimq.store import script
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.store.connection import Part, Reply
    from chasquimq.store.link import Link

_PAGE_MAX = 500
# Where hand-backs wait; it is empty most of the time and must stay.
_KEPT = b"returned"
# An entry of the index may be a little behind its job.
_INDEX_GRACE_MS = 1_000
# A turn ends before the same worker looks again.
_TURN_SHARE = 0.9


class JanitorStore:
    """The sweeping side of one group, over somebody's link."""

    def __init__(self, queue: str, group: str, link: Link) -> None:
        self._keys = QueueKeys(queue)
        self._group = group
        self._link = link

    async def take_turn(self, pause_ms: int) -> bool:
        """Whether nobody else has swept within that time."""
        ttl_ms = max(1, int(pause_ms * _TURN_SHARE))
        key = self._keys.janitor_turn
        return await self._link.call("SET", key, "1", "NX", "PX", ttl_ms) is not None

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
        """Remove the group; answers who used it, and None where there is none of that name.

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
            raise still_used(self._keys.queue, found)
        with suppress(ServerRefused):  # no job waits in there
            await self._link.call("XGROUP", "DESTROY", self._keys.wake, self._group)
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
            rows = await self._link.call("XINFO", "CONSUMERS", stream, self._group)
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
        return await script.run(await self._link.connection(), name, keys, *args)
