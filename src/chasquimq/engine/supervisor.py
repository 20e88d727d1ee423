"""Keeps loops alive: whatever ends one early, it starts again, and health says so."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from chasquimq.errors import StoreError

if TYPE_CHECKING:
    from chasquimq.engine.loop import Loop

logger = logging.getLogger(__name__)
# A loop is back within two seconds of its cure, which a last long pause must leave time for.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0
_DOWN_S = 5.0
_UP_S = 1.0


class Supervisor:
    """Runs each loop until it ends by itself."""

    def __init__(self) -> None:
        self._down_since_s: dict[str, float] = {}
        self._errors: dict[str, str] = {}
        self._told: set[str] = set()

    @property
    def loops_down(self) -> dict[str, str]:
        """Loops that have been failing for more than five seconds, with their last error."""
        now_s = time.monotonic()
        return {
            name: self._errors[name]
            for name, since_s in self._down_since_s.items()
            if now_s - since_s > _DOWN_S
        }

    async def keep(self, loop: Loop) -> None:
        """Run the loop; after an error wait a little longer each time, then run it again."""
        failures = 0
        while True:
            started_s = time.monotonic()
            try:
                return await self._run(loop)
            except StoreError as error:
                self._note(loop.name, error)
            except Exception as error:  # a bug in a loop must not stop the worker in silence
                logger.exception("a loop failed and is started again", extra={"loop": loop.name})
                self._note(loop.name, error)
            failures = 1 if time.monotonic() - started_s > _DOWN_S else failures + 1
            ceiling_s = min(_PAUSE_S_MAX, _PAUSE_S_MIN * 2**failures)
            await asyncio.sleep(random.uniform(_PAUSE_S_MIN / 2, ceiling_s))

    async def _run(self, loop: Loop) -> None:
        # A loop that has run this long without an error is up again.
        recovery = asyncio.get_running_loop().call_later(_UP_S, self._recovered, loop.name)
        try:
            await loop.run()
        finally:
            recovery.cancel()

    def _note(self, name: str, error: Exception) -> None:
        self._down_since_s.setdefault(name, time.monotonic())
        self._errors[name] = str(error)
        if name in self.loops_down and name not in self._told:
            self._told.add(name)
            logger.error("a loop has been down", extra={"loop": name, "error": str(error)})

    def _recovered(self, name: str) -> None:
        self._down_since_s.pop(name, None)
        self._told.discard(name)
