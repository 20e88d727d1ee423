"""Notices when something that should be quick takes a large part of the time."""

from __future__ import annotations

_WINDOW_NS = 1_000_000_000
_SPENT_NS_MAX = 200_000_000


class Burden:
    """A fifth of each second may be spent; one long call and many short ones weigh the same."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._spent_ns = 0

    def is_too_much(self, began_ns: int, ended_ns: int) -> bool:
        """Add a stretch of time; True: too much was spent, and counting starts again."""
        if began_ns - self._since_ns > _WINDOW_NS:
            self._since_ns, self._spent_ns = began_ns, 0
        self._spent_ns += ended_ns - began_ns
        if self._spent_ns <= _SPENT_NS_MAX:
            return False
        self._since_ns, self._spent_ns = ended_ns, 0
        return True
