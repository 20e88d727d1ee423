"""Bounds how much is unconfirmed at once: jobs by `Window`, their bytes by `UnconfirmedBytes`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager


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


class UnconfirmedBytes:
    """Backpressure: adders wait while this many bytes of encoded jobs are unconfirmed.

    An adder calls `room` before it encodes a job and `take` right after, without waiting in
    between. So no more than one call stands above the maximum, and one that is larger than the
    maximum goes like any other. First come, first served.
    """

    def __init__(self, size_max: int) -> None:
        self.size = 0
        # Whether adders must wait; true for as long as one does, so that nobody overtakes.
        self.is_full = False
        self.size_max = size_max
        self._turns: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def take(self, size: int) -> None:
        self.size += size
        if self.size >= self.size_max:
            self.is_full = True

    def free(self, size: int) -> None:
        self.size -= size
        if self.is_full:
            self._give_turn()

    @contextmanager
    def taken(self, size: int) -> Generator[None]:
        """Take for as long as the block runs."""
        self.take(size)
        try:
            yield
        finally:
            self.free(size)

    async def room(self) -> None:
        """Return when it is this caller's turn to encode and `take`."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._turns[turn] = None
        self._give_turn()
        try:
            await turn
        finally:
            del self._turns[turn]
            # The next one looks when this one has taken its bytes, or has gone.
            loop.call_soon(self._give_turn)

    def _give_turn(self) -> None:
        if self.size >= self.size_max:
            return
        turn = next(iter(self._turns), None)
        if turn is None:
            self.is_full = False
        elif not turn.done():
            turn.set_result(None)
