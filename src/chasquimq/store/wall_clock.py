"""This machine's time of day, in the milliseconds that go into entries."""

from __future__ import annotations

import time


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def wall_offset_ns() -> int:
    """The time of day minus the monotonic clock."""
    return time.time_ns() - time.monotonic_ns()
