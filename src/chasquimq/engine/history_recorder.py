"""Records committed outcomes in the history: gathers them as they come, writes them in batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chasquimq.engine.listeners import Listener
from chasquimq.engine.supervisor import Ticker
from chasquimq.errors import StoreError
from chasquimq.model.log import get_logger

if TYPE_CHECKING:
    from chasquimq.model.delivery import Burying, Delivery, Retrying
    from chasquimq.store.history import HistoryStore

logger = get_logger(__name__)
_PAUSE_MS = 250
# On a slow queue an entry waits longer for others: rows share the bytes around them.
_ROWS_MIN = 10
_PAUSE_MS_MAX = 2_000


class HistoryRecorder(Listener):
    """Gathers outcomes as a listener and writes them as a loop; a job never waits for it."""

    name = "history-recorder"

    def __init__(self, store: HistoryStore, subject: str) -> None:
        """`subject` is whose history it is, as the log says it."""
        self._store = store
        self._subject = subject
        self._ticker = Ticker()
        self._written_s = time.monotonic()
        self._is_failing = False

    @property
    def dropped_count(self) -> int:
        return self._store.dropped_count

    @property
    def has_rows(self) -> bool:
        """Whether there ever was a row, so that the history has an end to be written."""
        return not self._store.is_untouched

    def completed(self, deliveries: Sequence[Delivery]) -> None:
        self._store.completed(deliveries)
        self._nudge_when_full()

    def retried(self, moves: Sequence[Retrying]) -> None:
        self._store.retried(moves)
        self._nudge_when_full()

    def buried(self, moves: Sequence[Burying]) -> None:
        self._store.buried(moves)
        self._nudge_when_full()

    def disputed(self, moves: Sequence[Any], *, is_unproven: bool) -> None:
        self._store.disputed(moves, is_unproven=is_unproven)
        self._nudge_when_full()

    def stop(self) -> None:
        self._ticker.stop()

    async def run(self) -> None:
        while not self._ticker.is_stopped:
            await self._ticker.pause(_PAUSE_MS)
            if self._is_due() and not self._ticker.is_stopped:
                await self.run_once()

    async def run_once(self) -> None:
        """Write what there is; a server that refuses is asked again after the next pause."""
        self._written_s = time.monotonic()
        try:
            await self._store.flush()
        except StoreError as error:
            self._log(error)
            return
        self._is_failing = False

    async def end(self) -> None:
        """Write the rest, and that there is no more to come."""
        if not self._store.is_untouched:
            await self._store.flush(is_last=True)

    def give_up(self) -> None:
        """Count what could not be written; there is no later."""
        self._store.give_up()

    def _is_due(self) -> bool:
        if self._store.row_count >= _ROWS_MIN:
            return True
        return (time.monotonic() - self._written_s) * 1_000 >= _PAUSE_MS_MAX

    def _nudge_when_full(self) -> None:
        # A server that refuses is not asked faster because there is more to write.
        if self._store.is_full and not self._is_failing:
            self._ticker.nudge()

    def _log(self, error: StoreError) -> None:
        if not self._is_failing:
            logger.warning(
                "the history of %s cannot be written now: %s",
                self._subject, error, extra={"error": str(error)},
            )  # fmt: skip
        self._is_failing = True
