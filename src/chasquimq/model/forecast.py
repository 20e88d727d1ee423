"""Forecasts a backlog from samples of its queue: rates, the time it clears, workers needed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import msgspec

from chasquimq.model.snapshot import Snapshot

# ── from samples, for tables and reports ──────────────────────────────────────────────────────────

# Old enough to smooth over a batch, young enough to follow a change.
WINDOW_MS = 60_000
# Below this share of the traffic a difference between arrivals and departures is noise.
_NOISE_SHARE = 0.02
# What a division of whole numbers may be off by.
_ROUNDING = 1e-9


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at one moment of the server's clock.

    `added` and `left` are None where the server does not count them.
    """

    queue: str
    at_ms: int
    ready: int
    running: int
    delayed: int
    dlq: int
    added: int | None
    left: int | None
    oldest_ms: int | None
    consumers: int


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a queue at the present rates, in jobs a second; None where it is not known.

    `clears_at_ms` None and `never_clears`: it grows or stands still. `workers_needed` is how many
    keep up with the jobs that arrive; a backlog takes more.
    """

    queue: str
    made_at_ms: int
    arrival_rate: float | None = None
    departure_rate: float | None = None
    clears_at_ms: int | None = None
    never_clears: bool | None = None
    breach_at_ms: int | None = None
    workers_needed: int | None = None


def forecast(samples: Sequence[Sample], target_ms: int | None = None) -> Forecast:
    """Look ahead from the samples of one queue, oldest first; the last of them is now."""
    now = samples[-1]
    arrival, departure = _rates(samples)
    if arrival is None or departure is None:
        return Forecast(queue=now.queue, made_at_ms=now.at_ms)
    clears_at_ms = _clears_at_ms(now, arrival, departure)
    return Forecast(
        queue=now.queue,
        made_at_ms=now.at_ms,
        arrival_rate=arrival,
        departure_rate=departure,
        clears_at_ms=clears_at_ms,
        never_clears=clears_at_ms is None,
        breach_at_ms=_breach_at_ms(now, arrival, departure, target_ms),
        workers_needed=_workers_needed(now, arrival, departure),
    )


def _rates(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    last = samples[-1]
    first = _first_of_window(samples)
    seconds = (last.at_ms - first.at_ms) / 1_000
    if seconds <= 0:
        return None, None
    return _rate(first.added, last.added, seconds), _rate(first.left, last.left, seconds)


def _first_of_window(samples: Sequence[Sample]) -> Sample:
    """The oldest of the window; where looks are seldom, the one before it."""
    last = samples[-1]
    recent = [one for one in samples if last.at_ms - one.at_ms <= WINDOW_MS]
    return recent[0] if len(recent) > 1 else samples[max(0, len(samples) - 2)]


def _rate(first: int | None, last: int | None, seconds: float) -> float | None:
    # A stream that was deleted meanwhile counts from zero again.
    if first is None or last is None or last < first:
        return None
    return (last - first) / seconds


def _clears_at_ms(now: Sample, arrival: float, departure: float) -> int | None:
    backlog = now.ready + now.running
    if not backlog:
        return now.at_ms
    gain = departure - arrival
    if gain <= _NOISE_SHARE * max(arrival, departure):
        return None
    return now.at_ms + math.ceil(backlog / gain * 1_000)


def _breach_at_ms(
    now: Sample, arrival: float, departure: float, target_ms: int | None
) -> int | None:
    """When a new job will wait longer than the target, because the backlog is too long."""
    if target_ms is None or not now.ready + now.running:
        return None
    bearable = departure * target_ms / 1_000
    if now.ready > bearable:
        return now.at_ms
    if arrival <= departure:
        return None
    return now.at_ms + math.ceil((bearable - now.ready) / (arrival - departure) * 1_000)


def _workers_needed(now: Sample, arrival: float, departure: float) -> int | None:
    # Idle workers show how many jobs there are, not how many they could run.
    if not now.consumers or not departure or not now.ready:
        return None
    return max(1, math.ceil(arrival * now.consumers / departure - _ROUNDING))


# ── from snapshots, for a live view ───────────────────────────────────────────────────────────────

# Old enough to smooth over a batch, young enough to follow a change.
TREND_WINDOW_MS = 10_000
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
    """Keeps the snapshots of the last seconds and derives rates from them."""

    def __init__(self, window_ms: int = TREND_WINDOW_MS) -> None:
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
            _trend_rate(first.added_total, last.added_total, elapsed_s),
            _trend_rate(first.left_total, last.left_total, elapsed_s),
        )

    @property
    def sentence(self) -> str | None:
        """What becomes of the backlog at the present rates; None after the first snapshot."""
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
    """A rate as text, with decimals only below 10."""
    return f"{per_s:,.0f}" if abs(per_s) >= 10 else f"{per_s:.1f}"


def about(seconds: float) -> str:
    """A duration in its largest fitting unit, rounded up."""
    for unit_s, unit in _UNITS:
        if seconds >= unit_s:
            return f"{math.ceil(seconds / unit_s)} {unit}"
    return "1 s"


def _trend_rate(first: int | None, last: int | None, elapsed_s: float) -> float | None:
    # A stream that was deleted meanwhile counts from zero again.
    if first is None or last is None or last < first:
        return None
    return (last - first) / elapsed_s
