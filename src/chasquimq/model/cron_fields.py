"""Reads one field of a cron expression into the values it allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chasquimq.errors import ScheduleRefused

YEAR_MIN = 1970
YEAR_MAX = 5_000
DIGITS_MAX = 4

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True, slots=True)
class Field:
    """One of the seven fields: its name, its bounds, and the words it understands."""

    name: str
    low: int
    high: int
    words: Mapping[str, int]

    def refuse(self, found: str, rule: str) -> ScheduleRefused:
        return ScheduleRefused(f"cron {self.name}", found, rule)


SECOND = Field("second", 0, 59, {})
MINUTE = Field("minute", 0, 59, {})
HOUR = Field("hour", 0, 23, {})
DAY = Field("day of month", 1, 31, {})
MONTH = Field("month", 1, 12, {word: i for i, word in enumerate(_MONTHS, start=1)})
WEEKDAY = Field("weekday", 0, 7, {word: i for i, word in enumerate(_WEEKDAYS)})
YEAR = Field("year", YEAR_MIN, YEAR_MAX, {})


def read_values(field: Field, text: str) -> tuple[int, ...]:
    """Read a whole field, a list of terms, into its values in order."""
    terms = (read_term(field, term) for term in text.split(","))
    return tuple(sorted({value for values in terms for value in values}))


def read_term(field: Field, term: str) -> range:
    """Read one term: `*`, `a`, `a-b`, each with a step or without."""
    span, slash, step = term.partition("/")
    low, high = _read_span(field, span, is_open=bool(slash))
    if low > high:
        raise field.refuse(term, "a range that does not run backwards")
    return range(low, high + 1, _read_step(field, step) if slash else 1)


def read_number(field: Field, text: str) -> int:
    """Read a number or a word that stands for one."""
    if text in field.words:
        return field.words[text]
    if not _is_number(text) or not field.low <= int(text) <= field.high:
        raise field.refuse(text, f"a number from {field.low} to {field.high}")
    return int(text)


def _read_span(field: Field, span: str, *, is_open: bool) -> tuple[int, int]:
    if span == "*":
        return field.low, field.high
    start, dash, end = span.partition("-")
    low = read_number(field, start)
    if dash:
        return low, _read_end(field, end)
    return low, field.high if is_open else low


def _read_end(field: Field, end: str) -> int:
    # Sunday opens the week as 0 and closes it as 7, so that FRI-SUN runs forwards.
    if field is WEEKDAY and end == "SUN":
        return WEEKDAY.high
    return read_number(field, end)


def _read_step(field: Field, step: str) -> int:
    if not _is_number(step) or int(step) < 1:
        raise field.refuse(step, "a step of at least 1")
    return int(step)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
