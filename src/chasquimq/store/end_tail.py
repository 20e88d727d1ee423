"""Hears from the events stream which jobs of a queue have ended; never the only one to ask."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chasquimq.store.tailing import EventTail
from chasquimq.wire.event_fields import ended_job_id

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings

_BLOCK_MS = 5_000
_PAGE_MAX = 500
# Events that come one by one are read a few at a time.
_PACE_S = 0.005
# Where more happens than a page holds, all of it would cost more than asking for the ends.
_BUSY_PAUSE_S = 0.1


class EndTail(EventTail):
    """Follows the events of one queue from the moment it is settled."""

    def __init__(self, queue: str, connection: ConnectionSettings) -> None:
        super().__init__(
            [queue], connection, after_id="$", block_ms=_BLOCK_MS, count=_PAGE_MAX,
            name="chasqui-results",
        )  # fmt: skip
        self._pause_s = 0.0

    async def read_ended(self) -> list[str]:
        """Ids of jobs that have ended; a stream too busy to follow is left out in part."""
        await asyncio.sleep(self._pause_s)
        rows = await self.read_rows()
        self._pause_s = _PACE_S if rows else 0.0
        if len(rows) == _PAGE_MAX:
            self.skip()
            self._pause_s = _BUSY_PAUSE_S
        return [ended for _, _, fields in rows if (ended := ended_job_id(fields))]
