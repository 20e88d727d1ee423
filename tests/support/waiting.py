"""Waits for signals with a bound, and says what it waited for when none came."""

from __future__ import annotations

import asyncio
import inspect
import os
import time

_PATIENCE_MAX = 10.0


async def eventually(condition, *, within_s: float = 10.0, what: str = "the condition") -> object:
    """Ask again and again until the (async) condition is true; its value is the answer."""
    began_s = time.monotonic()
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        waited_s = time.monotonic() - began_s
        if waited_s > within_s and waited_s > within_s * patience():
            raise AssertionError(f"{what} did not become true within {waited_s:.1f} s")
        await asyncio.sleep(0.01)


def patience() -> float:
    """How much longer things may take while others keep this machine busy: 1 where nobody does."""
    return min(_PATIENCE_MAX, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
