"""Time zones by name: which texts are one, and which part of the others is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chasquimq.errors import SettingsError
from chasquimq.model.schedule import parse_zone

MIDSUMMER = datetime(2030, 7, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", [None, "", "  ", "UTC", "utc", "Utc", " UTC ", "Z"])
def test_no_zone_is_utc(text: str | None):
    assert parse_zone(text) is UTC


@pytest.mark.parametrize(
    ("text", "minutes_east"),
    [
        ("+05:30", 330),
        ("-0800", -480),
        (" +0100 ", 60),
        ("+00:00", 0),
        ("-00:30", -30),
        ("+23:59", 1_439),
        ("-23:59", -1_439),
    ],
)
def test_an_offset_is_a_zone_of_its_own(text: str, minutes_east: int):
    assert MIDSUMMER.astimezone(parse_zone(text)).utcoffset() == timedelta(minutes=minutes_east)


@pytest.mark.parametrize(
    ("text", "hours_east"),
    [
        ("Europe/Madrid", 2),
        ("US/Eastern", -4),
        (" America/New_York ", -4),
        ("Etc/GMT+5", -5),
        ("GMT", 0),
    ],
)
def test_an_iana_name_brings_its_daylight_saving_along(text: str, hours_east: int):
    assert MIDSUMMER.astimezone(parse_zone(text)).utcoffset() == timedelta(hours=hours_east)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Mars/Base", "IANA zone name"),
        ("america/new_york", "IANA zone name"),
        ("America", "IANA zone name"),
        ("../etc/passwd", "IANA zone name"),
        ("right/UTC", "IANA zone name"),
        ("z", "IANA zone name"),
        ("05:30", "IANA zone name"),
        ("\0", "IANA zone name"),
        ("+5", "the form"),
        ("+5:30", "the form"),
        ("+", "the form"),
        ("+05:30:00", "the form"),
        ("+\u0660\u0665:\u0663\u0660", "the form"),
        ("+25:00", "hours from 00 to 23"),
        ("+24:00", "hours from 00 to 23"),
        ("-05:60", "minutes from 00 to 59"),
        ("A" * 65, "at most 64 characters"),
    ],
)
def test_a_refusal_names_the_part_at_fault(text: str, rule: str):
    with pytest.raises(SettingsError, match=rule):
        parse_zone(text)


@pytest.mark.parametrize("text", [5, b"UTC", ["UTC"], UTC])
def test_a_zone_must_be_a_text(text: object):
    with pytest.raises(SettingsError, match="tz must be a text or None"):
        parse_zone(text)  # pyright: ignore[reportArgumentType] the point


@settings(deadline=None, max_examples=300, database=None)
@given(st.one_of(st.text(max_size=70), st.text(alphabet="+-:0123456789UTCZ /.", max_size=8)))
def test_any_text_is_a_zone_or_is_refused(text: str):
    try:
        zone = parse_zone(text)
    except SettingsError:
        return
    assert MIDSUMMER.astimezone(zone).utcoffset() is not None
