"""How long to wait before the next dial of a broken connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

# Dense at first, so that a server restart costs under two seconds; sparse later, so that
# an outage of a minute costs at most fifteen dials for each connection, and leaves one of them
# for somebody who comes between two.
_CEILINGS_MS = (200, 400, 800, 1_600)
_LONG_MS_MIN, _LONG_MS_MAX = 5_800, 6_000
_WINDOW_S = 60.0
_DIALS_PER_WINDOW_MAX = 15
_EARLY_GAP_S = 1.0
# After so much quiet the next outage is another one, and begins with the dense dials.
_QUIET_S = 30.0


def dial_delay_ms(failures: int, uniform: Callable[[float, float], float]) -> float:
    """The pause after `failures` dials in a row have failed."""
    if failures <= 0:
        return 0.0
    if failures <= len(_CEILINGS_MS):
        ceiling = _CEILINGS_MS[failures - 1]
        return uniform(ceiling / 2, ceiling)
    return uniform(_LONG_MS_MIN, _LONG_MS_MAX)


class DialSchedule:
    """When a broken connection may dial: ever more rarely, and at most 15 times in a minute.

    Whoever needs the connection may dial before the long pauses are over, as far as the dials
    that were left out before make up for it. All times are of one clock, in seconds.
    """

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self._failures = 0
        self._not_before_s = float("-inf")
        self._dials_s: deque[float] = deque(maxlen=_DIALS_PER_WINDOW_MAX)

    def wait_s(self, now_s: float) -> float:
        """How long the next dial has to wait."""
        return max(0.0, self._not_before_s - now_s)

    def dialled(self, now_s: float) -> None:
        """A dial begins."""
        self._dials_s.append(now_s)

    def failed(self, now_s: float) -> None:
        """A dial has failed."""
        self._failures += 1
        self._put_off(now_s)

    def broke(self, now_s: float, *, is_young: bool) -> None:
        """An open connection has broken; a young one counts as a dial that failed."""
        self._failures = self._failures + 1 if is_young else 0
        self._put_off(now_s)

    def asked(self, now_s: float) -> None:
        """Somebody needs the connection again, perhaps after nobody did for long."""
        if self._dials_s and now_s - self._dials_s[-1] > _QUIET_S:
            self._failures = 0

    def allows_early(self, now_s: float, *, is_urgent: bool = False) -> bool:
        """Whether a dial before its time keeps every minute below its limit.

        Short pauses are for those who wait; an urgent caller has no time even for these.
        """
        is_long = self._failures > len(_CEILINGS_MS) and now_s - self._dials_s[-1] >= _EARLY_GAP_S
        return (is_long or is_urgent) and self._leaves_enough(now_s)

    def _leaves_enough(self, now_s: float) -> bool:
        """In the worst case all later dials come at the shortest of the long pauses."""
        return all(
            made + 1 + self._later_dials(now_s - dialled_s) <= _DIALS_PER_WINDOW_MAX
            for made, dialled_s in enumerate(reversed(self._dials_s), start=1)
            if now_s - dialled_s < _WINDOW_S
        )

    def _later_dials(self, age_s: float) -> int:
        """How many more may follow within the minute that began so long ago."""
        return int((_WINDOW_S - age_s) * 1000 // _LONG_MS_MIN)

    def _put_off(self, now_s: float) -> None:
        self._not_before_s = now_s + dial_delay_ms(self._failures, self._uniform) / 1000
