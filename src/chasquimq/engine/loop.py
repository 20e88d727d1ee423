"""What a loop is: something that runs until stopped, one bounded step at a time."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Loop(Protocol):
    """Everything the supervisor keeps alive."""

    name: str

    async def run(self) -> None:
        """Go on until stopped; a StoreError may end it, the supervisor starts it again."""
        ...

    def stop(self) -> None:
        """Ask `run` to end soon."""
        ...


class Ticker:
    """A loop's pause that a stop or a nudge cuts short."""

    def __init__(self) -> None:
        self._cut = asyncio.Event()
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True
        self._cut.set()

    def nudge(self) -> None:
        """End the current pause, or the next one."""
        self._cut.set()

    async def pause(self, ms: float) -> None:
        """Wait that long, or until stopped or nudged."""
        try:
            async with asyncio.timeout(ms / 1000):
                await self._cut.wait()
        except TimeoutError:
            return
        if not self.is_stopped:
            self._cut.clear()
