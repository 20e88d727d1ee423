"""Decides when a repeatable job fires: by interval or cron, in a time zone, missed fires included."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, timedelta, timezone, tzinfo
from functools import lru_cache
from importlib import resources
from typing import Literal, assert_never
from zoneinfo import ZoneInfo

from chasquimq.errors import ScheduleRefused, SettingsError
from chasquimq.model.cron import CronPattern

# ── time zones ────────────────────────────────────────────────────────────────────────────────────

ZONE_CHARS_MAX = 64
ZONES_REMEMBERED_MAX = 1_024

_OFFSET = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})")


def parse_zone(text: str | None) -> tzinfo:
    """Read a zone: nothing or `UTC`, an offset such as `+05:30`, or an IANA name.

    Raises:
        ScheduleRefused: the text is none of these.
    """
    if text is None:
        return UTC
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] user input
        raise ScheduleRefused("tz", text, "a text or None")
    if len(text) > ZONE_CHARS_MAX:
        raise ScheduleRefused("tz", text, f"at most {ZONE_CHARS_MAX} characters")
    return _zone(text.strip())


@lru_cache(maxsize=ZONES_REMEMBERED_MAX)
def _zone(name: str) -> tzinfo:
    if name in ("", "Z") or name.upper() == "UTC":
        return UTC
    if name[0] in "+-":
        return _fixed_offset(name)
    # Asked of the list, not of the disk, so that case matters on every file system.
    if name not in _iana_names():
        raise ScheduleRefused("tz", name, "UTC, an offset such as +05:30, or an IANA zone name")
    return ZoneInfo(name)


def _fixed_offset(text: str) -> tzinfo:
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise ScheduleRefused("tz", text, "an offset of the form +HH:MM or +HHMM")
    sign, hours, minutes = match.groups()
    if int(hours) > 23:
        raise ScheduleRefused("tz", text, "an offset with hours from 00 to 23")
    if int(minutes) > 59:
        raise ScheduleRefused("tz", text, "an offset with minutes from 00 to 59")
    east = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-east if sign == "-" else east)


@lru_cache(maxsize=1)
def _iana_names() -> frozenset[str]:
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())


# ── patterns, and what fires now ──────────────────────────────────────────────────────────────────

TICK_MS = 1_000
# A window that opens right after one tick is seen by the next, and that one may run late.
GRACE_MS = 2 * TICK_MS
FIRES_PER_TICK_MAX = 10_000
# Redis keeps scores as doubles, exact up to 2**53; half of it leaves room to add.
INSTANT_MS_MAX = 2**52


@dataclass(frozen=True, slots=True)
class Every:
    """Fire again and again, this many milliseconds apart."""

    interval_ms: int

    def __post_init__(self) -> None:
        _check_number("interval_ms", self.interval_ms, 1, INSTANT_MS_MAX)

    def next_after(self, instant_ms: int) -> int:
        """One interval later."""
        return instant_ms + self.interval_ms

    def next_on_cadence(self, window_ms: int, instant_ms: int) -> int:
        """The first window after the instant, counted from a window that is known."""
        return window_ms + ((instant_ms - window_ms) // self.interval_ms + 1) * self.interval_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """Fire when a wall clock in a zone shows one of these times."""

    expression: str
    tz: str | None = None
    _pattern: CronPattern = field(init=False, compare=False, repr=False)
    _zone: tzinfo = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pattern", CronPattern.parse(self.expression))
        object.__setattr__(self, "_zone", parse_zone(self.tz))

    def next_after(self, instant_ms: int) -> int:
        """The first window after the instant; ScheduleRefused when there is none."""
        return self._pattern.next_after(instant_ms, self._zone)

    def next_on_cadence(self, window_ms: int, instant_ms: int) -> int:
        """The first window after the instant; wall clocks need no window to count from."""
        return self._pattern.next_after(instant_ms, self._zone)


Pattern = Every | Cron


@dataclass(frozen=True, slots=True)
class MissedFires:
    """What to do about fires that were due while no scheduler was running."""

    kind: Literal["skip", "fire-once", "fire-all"] = "skip"
    max_catchup: int | None = None

    @classmethod
    def skip(cls) -> MissedFires:
        """Skip them; the newest is not missed and fires late."""
        return cls("skip")

    @classmethod
    def fire_once(cls) -> MissedFires:
        """One fire for all of them, stamped with the first."""
        return cls("fire-once")

    @classmethod
    def fire_all(cls, max_catchup: int) -> MissedFires:
        """One fire for each of them and the newest, oldest first, up to `max_catchup`.

        Where there are more, those right before the newest are skipped.
        """
        return cls("fire-all", max_catchup)

    def __post_init__(self) -> None:
        if self.kind not in ("skip", "fire-once", "fire-all"):
            raise SettingsError("missed_fires", self.kind, "skip, fire-once or fire-all")
        if self.kind == "fire-all":
            _check_number("max_catchup", self.max_catchup, 1, INSTANT_MS_MAX)
        elif self.max_catchup is not None:
            raise SettingsError("max_catchup", self.max_catchup, "left out unless all are fired")


@dataclass(frozen=True, slots=True)
class Plan:
    """The windows to fire now, oldest first, and the one to wait for; None when all is over."""

    fires: list[int]
    next_ms: int | None


def first_fire(
    pattern: Pattern,
    now_ms: int,
    start_after_ms: int | None = None,
    end_before_ms: int | None = None,
) -> int:
    """The first window of a new spec.

    Raises:
        ScheduleRefused: the pattern has no window in reach, or none before the end.
    """
    for name, instant_ms in (("start_after_ms", start_after_ms), ("end_before_ms", end_before_ms)):
        if instant_ms is not None:
            _check_number(name, instant_ms, 0, INSTANT_MS_MAX)
    first_ms = pattern.next_after(max(now_ms, start_after_ms or 0))
    if end_before_ms is not None and first_ms > end_before_ms:
        rule = f"at least the first fire, {first_ms}"
        raise ScheduleRefused("end_before_ms", end_before_ms, rule)
    return first_ms


def plan_fires(
    pattern: Pattern,
    fire_at_ms: int,
    now_ms: int,
    policy: MissedFires,
    *,
    grace_ms: int = GRACE_MS,
    end_ms: int | None = None,
) -> Plan:
    """Decide what a spec whose window `fire_at_ms` has come fires now, and when it is next.

    A window is missed once its successor is due as well and it is older than `grace_ms`. The
    newest one, of those up to `end_ms`, is never missed, only late.
    """
    if fire_at_ms > now_ms:
        return Plan([], fire_at_ms)
    following_ms = _next_or_none(pattern, fire_at_ms, fire_at_ms)
    until_ms = now_ms if end_ms is None else min(now_ms, end_ms)
    if fire_at_ms > until_ms:
        return Plan([], following_ms)
    if following_ms is None or following_ms >= now_ms:
        return Plan([fire_at_ms], following_ms)
    fires = _choose(pattern, fire_at_ms, until_ms, policy, now_ms - grace_ms)
    return Plan(fires, _next_or_none(pattern, fire_at_ms, now_ms))


def _choose(
    pattern: Pattern, fire_at_ms: int, until_ms: int, policy: MissedFires, on_time_from_ms: int
) -> list[int]:
    if fire_at_ms >= on_time_from_ms:
        return _windows(pattern, fire_at_ms, until_ms, FIRES_PER_TICK_MAX)
    match policy.kind:
        case "skip":
            newest_ms = _newest(pattern, fire_at_ms, until_ms)
            first_ms = _next_or_none(pattern, fire_at_ms, on_time_from_ms - 1)
            first_ms = newest_ms if first_ms is None else min(first_ms, newest_ms)
            return _windows(pattern, first_ms, until_ms, FIRES_PER_TICK_MAX)
        case "fire-once":
            return [fire_at_ms]
        case "fire-all":
            count_max = min(policy.max_catchup or 1, FIRES_PER_TICK_MAX)
            return _windows(pattern, fire_at_ms, until_ms, count_max)
        case _:
            assert_never(policy.kind)


def _windows(pattern: Pattern, first_ms: int, until_ms: int, count_max: int) -> list[int]:
    """The oldest windows; the newest takes the last place where there are more than `count_max`."""
    windows: list[int] = []
    window_ms: int | None = first_ms
    while window_ms is not None and window_ms <= until_ms:
        if len(windows) == count_max:
            windows[-1] = _newest(pattern, window_ms, until_ms)
            break
        windows.append(window_ms)
        window_ms = _next_or_none(pattern, window_ms, window_ms)
    return windows


def _newest(pattern: Pattern, window_ms: int, until_ms: int) -> int:
    """The last window that has come; a stall may have been long, so the time is halved."""
    newest_ms, high_ms = window_ms, until_ms
    while newest_ms < high_ms:
        middle_ms = (newest_ms + high_ms) // 2
        found_ms = _next_or_none(pattern, window_ms, middle_ms)
        if found_ms is None or found_ms > until_ms:
            high_ms = middle_ms
        else:
            newest_ms = found_ms
    return newest_ms


def _next_or_none(pattern: Pattern, window_ms: int, instant_ms: int) -> int | None:
    try:
        return pattern.next_on_cadence(window_ms, instant_ms)
    except ScheduleRefused:
        return None


def _check_number(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingsError(name, value, f"a whole number from {low} to {high}")
