"""Where a backlog is going: rates between snapshots, and the sentence that follows from them."""

from __future__ import annotations

import math
from collections import deque

import msgspec

from chasquimq.model.snapshot import Snapshot

# Old enough to smooth over a batch, young enough to follow a change.
WINDOW_MS = 10_000
# Below this share of the traffic, and below one job in so many seconds, a change is noise.
_NOISE_SHARE = 0.02
_NOISE_PER_S = 0.1
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class Rates(msgspec.Struct, frozen=True):
    """Jobs per second; `added` and `left` are None where the server does not count them.

    `growth` is how fast the stream gets longer, below zero where it gets shorter.
    """

    growth: float
    added: float | None = None
    left: float | None = None

    @property
    def is_steady(self) -> bool:
        noise = max(_NOISE_PER_S, _NOISE_SHARE * (self.added or 0.0))
        return abs(self.growth) < noise


class Trend:
    """The snapshots of the last seconds, and what they say together."""

    def __init__(self, window_ms: int = WINDOW_MS) -> None:
        self._window_ms = window_ms
        self._seen: deque[Snapshot] = deque()

    def add(self, snapshot: Snapshot) -> None:
        self._seen.append(snapshot)
        # One snapshot stays from before the window, so that the window is always covered.
        while len(self._seen) > 2 and snapshot.at_ms - self._seen[1].at_ms >= self._window_ms:
            self._seen.popleft()

    @property
    def rates(self) -> Rates | None:
        """None until there are two moments to compare."""
        if len(self._seen) < 2:
            return None
        first, last = self._seen[0], self._seen[-1]
        elapsed_s = (last.at_ms - first.at_ms) / 1000
        if elapsed_s <= 0:
            return None
        return Rates(
            (last.stream_depth - first.stream_depth) / elapsed_s,
            _rate(first.added_total, last.added_total, elapsed_s),
            _rate(first.left_total, last.left_total, elapsed_s),
        )

    @property
    def sentence(self) -> str | None:
        """What becomes of the backlog if all goes on like this; None: too early to tell."""
        rates = self.rates
        return None if rates is None else outlook(self._seen[-1].stream_depth, rates)


def outlook(depth: int, rates: Rates) -> str:
    """One sentence about a stream of this length."""
    if rates.is_steady:
        return "steady" if depth else "steady, nothing waits"
    if rates.growth > 0:
        return f"grows by {rate_text(rates.growth)}/s, will not clear"
    if not depth:
        return "cleared, nothing waits"
    return f"clears in about {about(depth / -rates.growth)}"


def rate_text(per_s: float) -> str:
    """A rate for human eyes: decimals only where they tell something."""
    return f"{per_s:,.0f}" if abs(per_s) >= 10 else f"{per_s:.1f}"


def about(seconds: float) -> str:
    """A duration in its largest fitting unit, rounded up."""
    for unit_s, unit in _UNITS:
        if seconds >= unit_s:
            return f"{math.ceil(seconds / unit_s)} {unit}"
    return "1 s"


def _rate(first: int | None, last: int | None, elapsed_s: float) -> float | None:
    # A stream that was deleted meanwhile counts from zero again.
    if first is None or last is None or last < first:
        return None
    return (last - first) / elapsed_s
