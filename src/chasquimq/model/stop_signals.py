"""Counts the signals that ask a process to stop: the first drains, a second one stops at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

# A terminal signals the whole group and a wrapper forwards its copy, so one Ctrl+C may come twice;
# a person takes longer.
ECHO_S = 0.5
Stop = Literal["drain", "at_once"]


class StopSignals:
    """The first signal asks to drain, a later one to stop at once; an echo of the first is ignored."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._first_s: float | None = None
        # The last one, whether it counted or not.
        self.number: int | None = None

    def note(self, number: int = 0) -> Stop | None:
        """Return what this signal asks for; None for an echo. The next one after it counts again."""
        now_s, self.number = self._now_s(), number
        if self._first_s is None:
            self._first_s = now_s
            return "drain"
        return "at_once" if now_s - self._first_s >= ECHO_S else None
