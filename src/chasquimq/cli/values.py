"""Reads numbers, durations and moments as options take them, and shows them to people."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import click

PORT_MAX = 65_535
_SHOWN_CHARS_MAX = 40


class WholeNumber(click.IntRange):
    """A whole number between two bounds that belong to it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self._refuse(value, param, ctx)
        if (self.min is not None and number < self.min) or (
            self.max is not None and number > self.max
        ):
            self._refuse(value, param, ctx)
        return number

    def _refuse(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> NoReturn:
        bounds = f"of at least {self.min}" if self.max is None else f"from {self.min} to {self.max}"
        self.fail(f"must be a whole number {bounds}, got {_shown(value)}", param, ctx)


class Rate(click.ParamType[float]):
    """A number of jobs per second: above 0 and finite."""

    name = "float"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"must be a number above 0, got {_shown(value)}", param, ctx)
        return number


AT_LEAST_0 = WholeNumber(0)
AT_LEAST_1 = WholeNumber(1)
PORT = WholeNumber(1, PORT_MAX)
# 0 lets the system choose.
PORT_OR_ANY = WholeNumber(0, PORT_MAX)
RATE = Rate()


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


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


class DurationOrForever(click.ParamType[float]):
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
PATIENCE = DurationOrForever()


def patience_words(patience_ms: float) -> str:
    """A patience as it is typed."""
    return FOREVER if math.isinf(patience_ms) else f"{patience_ms:.0f}ms"


def duration_text(ms: float) -> str:
    """A duration for human eyes, in at most two units."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    # What rounds to 60 s is a minute.
    if seconds < 59.95:
        return f"{_decimals(seconds, 1)} s"
    units = _split(max(60, int(seconds)) * 1_000)
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


class Instant(click.ParamType[datetime]):
    """A moment: ISO 8601, UTC where no zone is given; or a duration from now."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = self._from_now(text, param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def _from_now(
        self, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            return datetime.now(UTC) + timedelta(milliseconds=DURATION.convert(text, None, None))
        except (click.BadParameter, OverflowError):
            self.fail(
                f"{text!r} is no time; write 2026-11-30, 2026-11-30T18:00+01:00, or 2h for two "
                "hours from now",
                param,
                ctx,
            )


INSTANT = Instant()
_MS_MAX = 253_402_300_799_999


def iso(ms: object) -> str:
    """The moment in text; what is no moment of our calendar is a dash."""
    if not isinstance(ms, int) or not 0 <= ms <= _MS_MAX:
        return "-"
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
