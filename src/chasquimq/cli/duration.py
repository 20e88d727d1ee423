"""Durations as people write them: 250ms, 5s, 10m, 2h, 1d."""

from __future__ import annotations

import re

import click

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


DURATION = Duration()


def duration_text(ms: float) -> str:
    """A duration for human eyes, in at most two units."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
