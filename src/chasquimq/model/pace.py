"""Lets a message through at once, then ever less often, however often it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

_QUIET_S_MIN = 60.0
_QUIET_S_MAX = 3_600.0


class Pace:
    """Ask before each message; `held_back` counts the refusals since the last one let through."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._quiet_s = _QUIET_S_MIN / 2
        self._quiet_until_s = float("-inf")
        # When the last message was let through, and the one before it.
        self._last_s = self._before_s = now_s()
        self.held_back = 0

    def allows(self) -> bool:
        now_s = self._now_s()
        if now_s < self._quiet_until_s:
            self.held_back += 1
            return False
        self._quiet_s = min(self._quiet_s * 2, _QUIET_S_MAX)
        self._quiet_until_s = now_s + self._quiet_s
        self._before_s, self._last_s = self._last_s, now_s
        return True

    def held_back_text(self) -> str:
        """Ends a message that was let through: how many like it were not; empty for none."""
        count = self.take_held_back()
        if not count:
            return ""
        seconds = self._last_s - self._before_s
        return f"; {count:,} more like it were not logged in the {seconds:,.0f} s before"

    def take_held_back(self) -> int:
        """How many were refused; counting starts again."""
        held_back, self.held_back = self.held_back, 0
        return held_back
