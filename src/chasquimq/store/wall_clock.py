"""This machine's time of day, in the milliseconds that go into entries."""

from __future__ import annotations

import time


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
