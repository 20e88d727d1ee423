"""Finds and removes what nobody will ever ask for again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.store import script
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.store.link import Link

_PAGE_MAX = 500
# Where hand-backs wait; it is empty most of the time and must stay.
_KEPT = b"returned"


class JanitorStore:
    """The sweeping side of one group, over somebody's link."""

    def __init__(self, queue: str, group: str, link: Link) -> None:
        self._stream = QueueKeys(queue).stream
        self._group = group
        self._link = link

    async def sweep_ghosts(self) -> int:
        """Forget pending entries whose bodies are gone; answers how many."""
        ghosts, at = 0, "-"
        while at:
            connection = await self._link.connection()
            found, after = await script.run(
                connection, "sweep", [self._stream], self._group, at, _PAGE_MAX
            )
            ghosts, at = ghosts + found, after.decode()
        return ghosts

    async def reap_consumers(self, idle_ms_min: int) -> int:
        """Remove consumers that hold nothing and have been silent that long."""
        reaped = 0
        for name in await self._consumers():
            connection = await self._link.connection()
            removed = await script.run(
                connection, "reap_consumer", [self._stream], self._group, name, idle_ms_min
            )
            reaped += removed == 1
        return reaped

    async def _consumers(self) -> list[bytes]:
        rows = await self._link.call("XINFO", "CONSUMERS", self._stream, self._group)
        names = [dict(zip(row[::2], row[1::2], strict=True))[b"name"] for row in rows]
        return [name for name in names if name != _KEPT]
