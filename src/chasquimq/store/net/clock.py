"""Reads the time of day of this machine, and keeps the server's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chasquimq.store.net.connection import Connection


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def wall_offset_ns() -> int:
    """The time of day minus the monotonic clock."""
    return time.time_ns() - time.monotonic_ns()


class ServerClock:
    """Server milliseconds carried forward by this machine's monotonic clock."""

    def __init__(self) -> None:
        # Until the server has been asked, the local clock is the best guess.
        self._offset_ms = time.time() * 1000 - time.monotonic() * 1000

    async def learn(self, connection: Connection) -> None:
        """Ask the server; half the round trip is taken as the way back."""
        before_s = time.monotonic()
        seconds, micros = await connection.call("TIME")
        after_s = time.monotonic()
        server_ms = int(seconds) * 1000 + int(micros) / 1000
        self._offset_ms = server_ms - (before_s + after_s) * 500

    def now_ms(self) -> float:
        return time.monotonic() * 1000 + self._offset_ms

    def at_ms(self, monotonic_ns: int) -> float:
        """The server's time at a moment of this machine's monotonic clock."""
        return monotonic_ns / 1_000_000 + self._offset_ms
