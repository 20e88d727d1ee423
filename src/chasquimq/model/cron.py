"""Reads cron expressions, and finds the next time that one fires, clock changes included."""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

from chasquimq.errors import ScheduleRefused

# ── one field ─────────────────────────────────────────────────────────────────────────────────────

YEAR_MIN = 1970
YEAR_MAX = 5_000
DIGITS_MAX = 4

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True, slots=True)
class Field:
    """One of the seven fields: its name, its bounds, and the names it accepts for numbers."""

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


# ── the day fields ────────────────────────────────────────────────────────────────────────────────

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


# ── the whole expression ──────────────────────────────────────────────────────────────────────────

EXPRESSION_CHARS_MAX = 1_024
EXPRESSIONS_REMEMBERED_MAX = 1_024
CLOCK_CHANGES_MAX = 1_000

_NICKNAMES = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
_SECOND = timedelta(seconds=1)
# Zones lie within a day of UTC, so nothing in reach happens outside of these.
_DAWN_S = int(datetime(YEAR_MIN - 1, 12, 30, tzinfo=UTC).timestamp())
_DUSK_S = int(datetime(YEAR_MAX + 1, 1, 2, tzinfo=UTC).timestamp())


@dataclass(frozen=True, slots=True)
class CronPattern:
    """A cron expression, read once.

    When clocks jump forward, a pattern with one time a day fires right after the jump, and
    any other loses the times that do not exist. When clocks go back, a pattern with `*` or a
    step among its times goes on firing through the repeated hour, and any other fires once,
    the first time.
    """

    expression: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: DayRule
    months: tuple[int, ...]
    years: Sequence[int]
    keeps_interval: bool

    @staticmethod
    def parse(expression: str) -> CronPattern:
        """Read an expression of 5 fields, 6 (seconds first), 7 (year last), or a nickname.

        Raises:
            ScheduleRefused: naming the field at fault.
        """
        # Arguments of users may be of any type.
        if not isinstance(expression, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleRefused("cron", expression, "a text")
        if len(expression) > EXPRESSION_CHARS_MAX or not expression.isascii():
            rule = f"at most {EXPRESSION_CHARS_MAX} characters, all of them ASCII"
            raise ScheduleRefused("cron", expression, rule)
        return _parse(expression)

    def next_after(self, instant_ms: int, zone: tzinfo) -> int:
        """The first whole second after the instant at which the pattern fires, in epoch ms.

        Raises:
            ScheduleRefused: nothing matches up to the end of the last year in reach.
        """
        after_s = max(instant_ms // 1000, _DAWN_S)
        found_s = self._first_after(after_s, zone) if after_s < _DUSK_S else None
        if found_s is None:
            rule = f"an expression that names a time up to the year {YEAR_MAX}"
            raise ScheduleRefused("cron", self.expression, rule)
        return found_s * 1000

    def _first_after(self, after_s: int, zone: tzinfo) -> int | None:
        wall = _wall_at(after_s, zone)
        found_s = self._search(wall, after_s, zone)
        turn_s = _turn_ahead(wall, zone) if self.keeps_interval else None
        if turn_s is None or (found_s is not None and found_s < turn_s):
            return found_s
        # The repeated hour begins before anything that was found, so it is searched as well.
        return self._search(_wall_at(turn_s, zone) - _SECOND, turn_s - 1, zone)

    def _search(self, wall: datetime, after_s: int, zone: tzinfo) -> int | None:
        # Each round that returns nothing steps over one clock change.
        for _ in range(CLOCK_CHANGES_MAX):
            named = self._next_wall(wall)
            if named is None:
                return None
            early_s, late_s = _instants(named, zone)
            if early_s > late_s:
                turn_s = _turn_between(late_s, early_s, zone)
                if self._is_once_a_day:
                    return turn_s
                wall = _wall_at(turn_s, zone) - _SECOND
            elif early_s > after_s:
                return early_s
            elif self.keeps_interval and late_s > after_s:
                return late_s
            else:
                wall = _wall_at(_turn_between(early_s, late_s, zone) - 1, zone)
        return None

    @property
    def _is_once_a_day(self) -> bool:
        return len(self.seconds) == len(self.minutes) == len(self.hours) == 1

    def _next_wall(self, wall: datetime) -> datetime | None:
        """The next wall clock time the pattern names, whether or not any clock shows it."""
        soonest = wall.replace(fold=0) + _SECOND
        for day in self._days_from(soonest.date()):
            earliest = soonest.time() if day == soonest.date() else time.min
            moment = self._moment_from(earliest)
            if moment is not None:
                return datetime.combine(day, moment)
        return None

    def _days_from(self, first: date) -> Iterator[date]:
        for year in self.years[bisect_left(self.years, first.year) :]:
            for month in self.months:
                if (year, month) == (first.year, first.month):
                    days = self.days.days_of(year, month)
                    yield from (first.replace(day=day) for day in days if day >= first.day)
                elif (year, month) > (first.year, first.month):
                    yield from (date(year, month, day) for day in self.days.days_of(year, month))

    def _moment_from(self, earliest: time) -> time | None:
        if earliest.hour in self.hours:
            if earliest.minute in self.minutes:
                second = _first_from(self.seconds, earliest.second)
                if second is not None:
                    return time(earliest.hour, earliest.minute, second)
            minute = _first_from(self.minutes, earliest.minute + 1)
            if minute is not None:
                return time(earliest.hour, minute, self.seconds[0])
        hour = _first_from(self.hours, earliest.hour + 1)
        return None if hour is None else time(hour, self.minutes[0], self.seconds[0])


@lru_cache(maxsize=EXPRESSIONS_REMEMBERED_MAX)
def _parse(expression: str) -> CronPattern:
    second, minute, hour, day, month, weekday, year = _split(expression)
    hours = read_values(HOUR, hour)
    return CronPattern(
        expression=expression,
        seconds=read_values(SECOND, second),
        minutes=read_values(MINUTE, minute),
        hours=hours,
        days=DayRule.read(day, weekday),
        months=read_values(MONTH, month),
        years=range(YEAR_MIN, YEAR_MAX + 1) if year == "*" else read_values(YEAR, year),
        keeps_interval=len(hours) == 24 or any(sign in second + minute + hour for sign in "*/"),
    )


def _split(expression: str) -> list[str]:
    text = expression.upper().strip()
    fields = _NICKNAMES.get(text, text).split()
    if not 5 <= len(fields) <= 7:
        raise ScheduleRefused("cron", expression, "5 to 7 fields or a nickname such as @daily")
    if len(fields) == 5:
        fields.insert(0, "0")
    return fields if len(fields) == 7 else [*fields, "*"]


def _first_from(values: Sequence[int], low: int) -> int | None:
    i = bisect_left(values, low)
    return values[i] if i < len(values) else None


def _wall_at(instant_s: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(instant_s, zone).replace(tzinfo=None)


def _instants(wall: datetime, zone: tzinfo) -> tuple[int, int]:
    """The instants a wall clock may show this: equal, or early first if it shows it twice.

    A time that clocks jump over comes back late first, which shows it.
    """
    local = wall.replace(tzinfo=zone, fold=0)
    return int(local.timestamp()), int(local.replace(fold=1).timestamp())


def _turn_ahead(wall: datetime, zone: tzinfo) -> int | None:
    """When clocks will be put back to show this time again, if they will."""
    early_s, late_s = _instants(wall, zone)
    is_first_time_round = early_s < late_s and not wall.fold
    return _turn_between(early_s, late_s, zone) if is_first_time_round else None


def _turn_between(before_s: int, after_s: int, zone: tzinfo) -> int:
    """The first second under the offset that holds at the later of the two instants."""
    offset = _offset_at(after_s, zone)
    seconds = range(before_s, after_s)
    return before_s + bisect_left(seconds, True, key=lambda s: _offset_at(s, zone) == offset)


def _offset_at(instant_s: int, zone: tzinfo) -> timedelta | None:
    return datetime.fromtimestamp(instant_s, UTC).astimezone(zone).utcoffset()
