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
    """A loop's pause that a stop cuts short."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()

    async def pause(self, ms: float) -> None:
        """Wait that long, or until stopped."""
        try:
            async with asyncio.timeout(ms / 1000):
                await self._stopped.wait()
        except TimeoutError:
            return
