"""How long a failed job waits before its next run."""

from __future__ import annotations

import math
from typing import Annotated, Protocol

import msgspec

FIXED = "fixed"
EXPONENTIAL = "exponential"

U32_MAX = 2**32 - 1
U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
# The wire holds unsigned 64-bit numbers; MessagePack itself is the ceiling.
U64 = Annotated[int, msgspec.Meta(ge=0)]


class Backoff(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A job's own waiting rule; None in a slot means the worker's default.

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
    """What one job asks for instead of the worker's retry settings."""

    max_attempts: U32 | None
    backoff: Backoff | None


class BackoffDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker uses where a job says nothing."""

    initial_backoff_ms: int = 100
    max_backoff_ms: int = 30_000
    multiplier: float = 2.0
    jitter_ms: int = 100


class Dice(Protocol):
    """Anything that draws like `random.Random`."""

    def randrange(self, start: int, /) -> int: ...


def delay_ms(n: int, backoff: Backoff | None, defaults: BackoffDefaults, rng: Dice) -> int:
    """Return the wait before retry `n`, counted from 1.

    Jitter is one-sided and added after the cap, as the original does.
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
