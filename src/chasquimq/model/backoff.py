"""Decides how long to wait before the next try: of a failed job, and of a broken connection."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec

# ── the next run of a failed job ──────────────────────────────────────────────────────────────────

FIXED = "fixed"
EXPONENTIAL = "exponential"

U32_MAX = 2**32 - 1
U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
# The wire holds unsigned 64-bit numbers; MessagePack itself is the ceiling.
U64 = Annotated[int, msgspec.Meta(ge=0)]


class Backoff(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A job's own backoff; None in a slot means the worker's default.

    Every slot is required, because the wire counts them: use `fixed` or `exponential`. The wire
    carries the multiplier as a float, so it must be one; read from the wire it always is.
    """

    kind: str
    delay_ms: U64
    max_delay_ms: U64 | None
    multiplier: float | None
    jitter_ms: U64 | None

    @classmethod
    def fixed(cls, delay_ms: int, jitter_ms: int | None = None) -> Backoff:
        """Wait the same time before every run."""
        return cls(FIXED, delay_ms, None, None, jitter_ms)

    @classmethod
    def exponential(
        cls,
        delay_ms: int,
        *,
        multiplier: float | None = None,
        max_delay_ms: int | None = None,
        jitter_ms: int | None = None,
    ) -> Backoff:
        """Wait longer before each run, up to `max_delay_ms`."""
        factor = None if multiplier is None else float(multiplier)
        return cls(EXPONENTIAL, delay_ms, max_delay_ms, factor, jitter_ms)


class RetryOverride(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The retry settings of one job, which override those of its worker."""

    max_attempts: U32 | None
    backoff: Backoff | None


class BackoffDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The backoff of a worker, for jobs without one of their own."""

    initial_backoff_ms: int = 100
    max_backoff_ms: int = 30_000
    multiplier: float = 2.0
    jitter_ms: int = 100


class RandomSource(Protocol):
    """Draws whole numbers like `random.Random`."""

    def randrange(self, start: int, /) -> int: ...


def delay_ms(n: int, backoff: Backoff | None, defaults: BackoffDefaults, rng: RandomSource) -> int:
    """Return the wait before retry `n`, counted from 1.

    Jitter only adds, after the cap, as in ChasquiMQ (Rust).
    """
    assert n >= 1, "the first retry is number 1"
    rule = backoff or Backoff.exponential(defaults.initial_backoff_ms)
    cap_ms = defaults.max_backoff_ms if rule.max_delay_ms is None else rule.max_delay_ms
    jitter_ms = defaults.jitter_ms if rule.jitter_ms is None else rule.jitter_ms
    if rule.kind == FIXED:
        wait_ms = min(rule.delay_ms, cap_ms)
    else:
        wait_ms = _capped(_grown_ms(n, rule, defaults), cap_ms)
    return wait_ms + (rng.randrange(jitter_ms) if jitter_ms else 0)


def _grown_ms(n: int, rule: Backoff, defaults: BackoffDefaults) -> float:
    multiplier = defaults.multiplier if rule.multiplier is None else rule.multiplier
    return rule.delay_ms * _power(multiplier, n - 1)


def _power(multiplier: float, exponent: int) -> float:
    try:
        return multiplier**exponent
    except OverflowError:
        return -math.inf if multiplier < 0 and exponent % 2 else math.inf


def _capped(base_ms: float, cap_ms: int) -> int:
    # Zero times infinity is NaN, and an unknown wait is the longest one.
    if math.isnan(base_ms) or base_ms >= cap_ms:
        return cap_ms
    return math.floor(max(0, base_ms))


# ── the next dial of a broken connection ──────────────────────────────────────────────────────────

# Dense at first, so that a server restart costs under two seconds; sparse later, so that
# an outage of a minute costs at most fifteen dials for each connection, one of them kept for a
# caller that needs the connection between two.
_CEILINGS_MS = (200, 400, 800, 1_600)
_LONG_MS_MIN, _LONG_MS_MAX = 5_800, 6_000
_WINDOW_S = 60.0
_DIALS_PER_WINDOW_MAX = 15
_EARLY_GAP_S = 1.0
# After this long without a dial the next outage counts as a new one: it begins with dense dials.
_QUIET_S = 30.0


def dial_delay_ms(failures: int, uniform: Callable[[float, float], float]) -> float:
    """Return the pause after `failures` failed dials in a row."""
    if failures <= 0:
        return 0.0
    if failures <= len(_CEILINGS_MS):
        ceiling = _CEILINGS_MS[failures - 1]
        return uniform(ceiling / 2, ceiling)
    return uniform(_LONG_MS_MIN, _LONG_MS_MAX)


class DialSchedule:
    """Decides when a broken connection may dial: ever less often, and at most 15 times a minute.

    A caller that needs the connection may dial before a long pause is over, as long as the limit
    holds. All times are of one clock, in seconds.
    """

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        self._uniform = uniform
        self._failures = 0
        self._not_before_s = float("-inf")
        self._dials_s: deque[float] = deque(maxlen=_DIALS_PER_WINDOW_MAX)

    def wait_s(self, now_s: float) -> float:
        """Return how long the next dial has to wait."""
        return max(0.0, self._not_before_s - now_s)

    def dialled(self, now_s: float) -> None:
        """Record that a dial begins."""
        self._dials_s.append(now_s)

    def failed(self, now_s: float) -> None:
        """Record that a dial has failed."""
        self._failures += 1
        self._put_off(now_s)

    def broke(self, now_s: float, *, is_young: bool) -> None:
        """Record that an open connection broke; a young one counts as a failed dial."""
        self._failures = self._failures + 1 if is_young else 0
        self._put_off(now_s)

    def asked(self, now_s: float) -> None:
        """Record that a caller needs the connection; after a long quiet the failures are forgotten."""
        if self._dials_s and now_s - self._dials_s[-1] > _QUIET_S:
            self._failures = 0

    def allows_early(self, now_s: float, *, is_urgent: bool = False) -> bool:
        """Return whether a dial before its time keeps every minute below the limit.

        Short pauses are always kept, except for an urgent caller.
        """
        is_long = self._failures > len(_CEILINGS_MS) and now_s - self._dials_s[-1] >= _EARLY_GAP_S
        return (is_long or is_urgent) and self._leaves_enough(now_s)

    def _leaves_enough(self, now_s: float) -> bool:
        """In the worst case all later dials follow at the shortest of the long pauses."""
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


def doubled_ms(failures: int, least_ms: int, most_ms: int) -> int:
    """The pause after so many failures in a row: twice as long each time, up to `most_ms`."""
    return min(most_ms, least_ms * 2 ** min(failures - 1, 20))
