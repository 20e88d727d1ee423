"""Finds the next instant a cron expression names, in any zone and across clock changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

from chasquimq.errors import ScheduleRefused
from chasquimq.model.cron_days import DayRule
from chasquimq.model.cron_fields import (
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    YEAR,
    YEAR_MAX,
    YEAR_MIN,
    read_values,
)

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
    step among its times keeps its pace through the repeated hour, and any other fires once,
    the first time round.
    """

    expression: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: DayRule
    months: tuple[int, ...]
    years: Sequence[int]
    keeps_pace: bool

    @staticmethod
    def parse(expression: str) -> CronPattern:
        """Read an expression of 5 fields, 6 (seconds first), 7 (year last), or a nickname.

        Raises:
            ScheduleRefused: naming the field at fault.
        """
        # Callers lie.
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
        turn_s = _turn_ahead(wall, zone) if self.keeps_pace else None
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
            elif self.keeps_pace and late_s > after_s:
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
        keeps_pace=len(hours) == 24 or any(sign in second + minute + hour for sign in "*/"),
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

    A time that clocks jump over comes back late first, which is how to tell.
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
