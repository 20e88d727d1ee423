"""Says when the DLQ has grown longer than its owner expects; what lies there is never touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.engine.loop import Ticker
from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from chasquimq.store.upkeep import UpkeepStore

logger = get_logger(__name__)
PAUSE_MS = 10_000


class DlqAlarm:
    """Warns once, and again only after the DLQ had been short enough in between."""

    name = "dlq-alarm"

    def __init__(self, store: UpkeepStore, len_max: int, pause_ms: int = PAUSE_MS) -> None:
        self._store = store
        self._len_max = len_max
        self._pause_ms = pause_ms
        self._ticker = Ticker()
        self.is_ringing = False

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self.run_once()
            await self._ticker.pause(self._pause_ms)

    async def run_once(self) -> None:
        """Look, and warn if the DLQ has become too long since the last look."""
        dead = await self._store.dlq_len()
        was_ringing, self.is_ringing = self.is_ringing, dead > self._len_max
        if self.is_ringing and not was_ringing:
            logger.warning(
                "%d jobs are in the DLQ, more than dlq_max_stream_len (%d)",
                dead,
                self._len_max,
                extra={"dead": dead, "dlq_max_stream_len": self._len_max},
            )
