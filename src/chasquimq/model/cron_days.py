"""Decides which days of a month a cron expression allows."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chasquimq.model.cron_fields import DAY, WEEKDAY, read_number, read_term

LAST = -1
NTH_MAX = 5

_SATURDAY = 6
_SUNDAY = 0


class MonthShape(NamedTuple):
    """All that a day rule needs to know of a month; there are only 28 shapes."""

    first_weekday: int
    day_count: int

    def weekday(self, day: int) -> int:
        return (self.first_weekday + day - 1) % 7


@dataclass(frozen=True, slots=True)
class DayRule:
    """The day-of-month and weekday fields together; None is a field that allows all days."""

    days: frozenset[int] | None
    nearest_to: frozenset[int]
    weekdays: frozenset[tuple[int, int | None]] | None
    needs_both: bool
    _known: dict[MonthShape, tuple[int, ...]] = field(
        default_factory=dict[MonthShape, tuple[int, ...]], compare=False, repr=False
    )

    @classmethod
    def read(cls, days: str, weekdays: str) -> DayRule:
        """Read both fields; a leading `+` on the weekday asks for days that match both."""
        needs_both = weekdays.startswith("+")
        days, weekdays = days.replace("?", "*"), weekdays.removeprefix("+").replace("?", "*")
        plain = [term for term in days.split(",") if not _is_nearest(term)]
        nearest = [term for term in days.split(",") if _is_nearest(term)]
        return cls(
            None if days == "*" else frozenset(day for term in plain for day in _read_days(term)),
            frozenset(read_number(DAY, term.removesuffix("W")) for term in nearest),
            None if weekdays == "*" else frozenset(_read_weekdays(weekdays)),
            needs_both,
        )

    def days_of(self, year: int, month: int) -> tuple[int, ...]:
        """The days of this month that the rule allows, in order."""
        monday_based, day_count = monthrange(year, month)
        shape = MonthShape((monday_based + 1) % 7, day_count)
        if shape not in self._known:
            self._known[shape] = tuple(self._days_in(shape))
        return self._known[shape]

    def _days_in(self, shape: MonthShape) -> Iterator[int]:
        nearest = {nearest_weekday(day, shape) for day in self.nearest_to if day <= shape.day_count}
        for day in range(1, shape.day_count + 1):
            if self._allows(day, shape, day in nearest):
                yield day

    def _allows(self, day: int, shape: MonthShape, is_nearest: bool) -> bool:
        by_day = self.days is None or is_nearest or _matches_day(day, shape, self.days)
        by_weekday = self.weekdays is None or _matches_weekday(day, shape, self.weekdays)
        if self.needs_both or self.days is None or self.weekdays is None:
            return by_day and by_weekday
        return by_day or by_weekday


def nearest_weekday(day: int, shape: MonthShape) -> int:
    """Monday to Friday closest to the day, without leaving the month."""
    if shape.weekday(day) == _SATURDAY:
        return day - 1 if day > 1 else day + 2
    if shape.weekday(day) == _SUNDAY:
        return day + 1 if day < shape.day_count else day - 2
    return day


def _is_nearest(term: str) -> bool:
    return term.endswith("W")


def _read_days(term: str) -> range | tuple[int]:
    return (LAST,) if term == "L" else read_term(DAY, term)


def _read_weekdays(text: str) -> Iterator[tuple[int, int | None]]:
    for term in text.split(","):
        body, nth = _split_nth(term)
        for weekday in read_term(WEEKDAY, body):
            yield weekday % 7, nth


def _split_nth(term: str) -> tuple[str, int | None]:
    body, hash_sign, nth = term.partition("#")
    if not hash_sign:
        return (term[:-1], LAST) if term.endswith("L") else (term, None)
    if nth == "L":
        return body, LAST
    if nth not in map(str, range(1, NTH_MAX + 1)):
        raise WEEKDAY.refuse(term, f"followed by #1 to #{NTH_MAX} or #L")
    return body, int(nth)


def _matches_day(day: int, shape: MonthShape, days: frozenset[int]) -> bool:
    return day in days or (LAST in days and day == shape.day_count)


def _matches_weekday(
    day: int, shape: MonthShape, weekdays: frozenset[tuple[int, int | None]]
) -> bool:
    weekday = shape.weekday(day)
    is_last = day + 7 > shape.day_count
    return (
        (weekday, None) in weekdays
        or (weekday, (day + 6) // 7) in weekdays
        or (is_last and (weekday, LAST) in weekdays)
    )
