"""Bounds how much is unconfirmed at once."""

from __future__ import annotations

import asyncio


class Window:
    """A counting gate whose free side costs an addition."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._inside = 0
        self._waiting: list[asyncio.Future[None]] = []

    def try_enter(self, count: int) -> bool:
        """Enter if there is room; a count above the maximum enters alone."""
        if self._inside and self._inside + count > self._size_max:
            return False
        self._inside += count
        return True

    async def enter(self, count: int) -> None:
        """Enter as soon as there is room."""
        while not self.try_enter(count):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def leave(self, count: int) -> None:
        self._inside -= count
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
