"""Values of a report as text: short, in units that fit, and nothing in them that acts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from chasquimq.spark.report.shape import Kind

TEXT_CHARS = 160
NOTHING = "-"
NO_NAME = "(no name)"
# Controls and the marks that turn the reading direction would be obeyed instead of shown.
_UNSAFE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def text_of(value: Any, kind: Kind) -> str:
    """The value for human eyes."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    if kind in ("text", "name"):
        return (name_text if kind == "name" else shown)(str(value))
    return _FORMATS[kind](value)


def shown(text: str, chars: int = TEXT_CHARS) -> str:
    """The text on one line, with what cannot be seen escaped, and cut where it is long."""
    plain = _UNSAFE.sub(_escaped, text)
    return plain if len(plain) <= chars else plain[: chars - 1] + "…"


def name_text(name: str | None) -> str:
    """The name of a job; it may be none, and a gap in a table says nothing."""
    return shown(name or "") or NO_NAME


def count_text(count: float) -> str:
    return f"{count:,.0f}"


def share_text(share: float) -> str:
    """Per cent; what is not all is never shown as all, and what is not nothing never as nothing."""
    percent = share * 100
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f}".removesuffix(".0") + " %"


def ms_text(ms: float) -> str:
    """A duration in at most two units."""
    # What would be rounded up to a whole next unit is given in that one.
    if ms < 0.9995:
        return f"{ms * 1_000:.0f} µs" if ms else "0 ms"
    if ms < 999.5:
        return f"{_short(ms)} ms"
    if ms < 59_500:
        return f"{_short(ms / 1_000)} s"
    minutes, seconds = divmod(round(ms / 1_000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def rate_text(per_s: float) -> str:
    if per_s >= 10:
        return f"{per_s:,.0f}/s"
    return f"{per_s:.1f}/s" if per_s >= 0.1 or per_s == 0 else f"{per_s * 60:.1f}/min"


def moment_text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def clock_text(moment: datetime) -> str:
    """The time of day; who reads it knows the day."""
    return f"{moment.astimezone(UTC):%H:%M} UTC"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


_FORMATS: dict[str, Callable[[Any], str]] = {
    "count": count_text,
    "share": share_text,
    "ms": ms_text,
    "rate": rate_text,
    "moment": moment_text,
}
