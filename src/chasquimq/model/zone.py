"""Turns the name of a time zone into its rules."""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

from chasquimq.errors import ScheduleRefused

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
