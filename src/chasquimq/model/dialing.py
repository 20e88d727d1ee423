"""How long to wait before the next dial of a broken connection."""

from __future__ import annotations

from collections.abc import Callable

# Dense at first, so that a server restart costs under two seconds; sparse later, so that
# an outage of a minute costs at most fifteen dials for each connection.
_CEILINGS_MS = (200, 400, 800, 1_600)
_LONG_MS_MIN, _LONG_MS_MAX = 5_400, 6_000


def dial_delay_ms(failures: int, uniform: Callable[[float, float], float]) -> float:
    """The pause after `failures` dials in a row have failed."""
    if failures <= 0:
        return 0.0
    if failures <= len(_CEILINGS_MS):
        ceiling = _CEILINGS_MS[failures - 1]
        return uniform(ceiling / 2, ceiling)
    return uniform(_LONG_MS_MIN, _LONG_MS_MAX)
