"""Durations as people write them: 250ms, 5s, 10m, 2h, 1d."""

from __future__ import annotations

import math
import re

import click

FOREVER = "forever"
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,6})?) ?(?P<unit>ms|s|min|m|h|d)", re.ASCII)


class Duration(click.ParamType[int]):
    """A number with its unit; becomes whole milliseconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no duration; write 250ms, 5s, 10m, 2h or 1d", param, ctx)
        return round(float(found["number"]) * _UNITS_MS[found["unit"]])


class Patience(click.ParamType[float]):
    """A duration in milliseconds, or `forever`, which is infinite."""

    name = "patience"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        if str(value).strip() == FOREVER:
            return math.inf
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no time to wait; write 30s, 10m or {FOREVER}", param, ctx)
        return float(found["number"]) * _UNITS_MS[found["unit"]]


DURATION = Duration()
PATIENCE = Patience()


def patience_words(patience_ms: float) -> str:
    """A patience as it is typed."""
    return FOREVER if math.isinf(patience_ms) else f"{patience_ms:.0f}ms"


def duration_text(ms: float) -> str:
    """A duration for human eyes, in at most two units."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 60:
        return f"{_decimals(seconds, 1)} s"
    units = _split(int(seconds) * 1_000)
    largest = next(at for at, (count, _) in enumerate(units) if count)
    return _joined(units[largest : largest + 2])


def interval_text(ms: int) -> str:
    """The same without any rounding, in as many units as it needs."""
    return f"{ms} ms" if ms < 1_000 else _joined(_split(ms))


def _split(ms: int) -> list[tuple[float, str]]:
    minutes, seconds_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return [(days, "d"), (hours, "h"), (minutes, "min"), (seconds_ms / 1_000, "s")]


def _joined(units: list[tuple[float, str]]) -> str:
    return " ".join(f"{_decimals(count, 3)} {unit}" for count, unit in units if count)


def _decimals(number: float, most: int) -> str:
    text = f"{number:.{most}f}"
    return text.rstrip("0").rstrip(".")
