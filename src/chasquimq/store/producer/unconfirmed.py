"""Bounds what is unconfirmed: jobs by `Window`, bytes by `UnconfirmedBytes`, time by `Deadlines`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from typing import Protocol

# Calls whose time is over within this time are answered together.
_SWEEP_GAP_S = 0.02


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


class Timed(Protocol):
    """Something under way that belongs to calls with deadlines."""

    # The first of these deadlines; infinite where nobody is left to be told.
    first_s: float

    def answer_late(self, now_s: float) -> None:
        """Answer the calls whose deadline has passed, and set `first_s` for the others."""
        ...


class Deadlines:
    """Answers calls whose time is over.

    One timer serves all that is under way. While the server answers it finds nothing to do, and
    begins anew once in the time that a call may take.
    """

    def __init__(self) -> None:
        self._under_way: dict[Timed, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_at_s = inf

    def watch(self, timed: Timed) -> None:
        self._under_way[timed] = None
        if timed.first_s < self._sweep_at_s:
            self._sweep_at(timed.first_s)

    def forget(self, timed: Timed) -> None:
        self._under_way.pop(timed, None)

    def close(self) -> None:
        """Answer nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sweep_at_s = at_s
        self._timer = asyncio.get_running_loop().call_at(at_s, self._sweep)

    def _sweep(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._timer, self._sweep_at_s = None, inf
        for timed in self._under_way:
            if timed.first_s <= now_s:
                timed.answer_late(now_s)
        next_s = min((timed.first_s for timed in self._under_way), default=inf)
        if next_s < inf:
            self._sweep_at(max(next_s, now_s + _SWEEP_GAP_S))
