"""What callers ask for one job becomes values of the model, or is refused by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from chasquimq import BackoffSpec
from chasquimq.errors import KindRefused, LimitExceeded, SettingsError
from chasquimq.model.job_options import (
    MS_MAX,
    Backoff,
    RetryOverride,
    Wait,
    duration_ms,
    optional_ms,
    optional_whole,
    retry_override,
    wait_of,
    whole_number,
)

NOW_MS = 1_700_000_000_000
DAY_S = 86_400


def wait(delay_ms=None, delay=None, *, days_max: int = 30) -> Wait | None:
    return wait_of(delay_ms, delay, days_max * DAY_S, NOW_MS)


# retries


def test_a_job_that_asks_for_nothing_has_no_override():
    assert retry_override(None, None) is None


@pytest.mark.parametrize("attempts", [1, 25, 2**32 - 1])
def test_a_budget_is_kept(attempts):
    assert retry_override(attempts, None) == RetryOverride(attempts, None)


BACKOFFS = {
    "int": (250, Backoff.fixed(250)),
    "zero": (0, Backoff.fixed(0)),
    "float": (250.9, Backoff.fixed(250)),
    "fixed": (BackoffSpec.fixed(10, 5), Backoff.fixed(10, 5)),
    "exponential": (
        BackoffSpec.exponential(10, multiplier=3, max_ms=99, jitter_ms=1),
        Backoff.exponential(10, multiplier=3.0, max_delay_ms=99, jitter_ms=1),
    ),
    "dict": (
        {"kind": "exponential", "delay_ms": 10.5, "multiplier": 2},
        Backoff.exponential(10, multiplier=2.0),
    ),
    "of a stranger": (
        SimpleNamespace(to_dict=lambda: {"kind": "fixed", "delay_ms": 7}),
        Backoff.fixed(7),
    ),
    "nones": ({"kind": "fixed", "delay_ms": 1, "max_delay_ms": None}, Backoff.fixed(1)),
}


@pytest.mark.parametrize(("given", "found"), BACKOFFS.values(), ids=BACKOFFS)
def test_every_spelling_of_a_backoff_is_understood(given, found):
    assert retry_override(None, given) == RetryOverride(None, found)


@pytest.mark.parametrize(
    "backoff",
    [
        -1,
        float("nan"),
        float("-inf"),
        2**64,
        {},
        {"kind": "linear", "delay_ms": 1},
        {"kind": ["fixed"], "delay_ms": 1},
        {"kind": "fixed"},
        {"kind": "fixed", "delay_ms": None},
        {"kind": "fixed", "delay_ms": "1"},
        {"kind": "fixed", "delay_ms": True},
        {"kind": "fixed", "delay_ms": 1, "jitter_ms": -1},
        {"kind": "fixed", "delay_ms": 1, "odd": 1, 5: 1},
        {"kind": "exponential", "delay_ms": 1, "multiplier": "2"},
        {"kind": "exponential", "delay_ms": 1, "multiplier": True},
        {"kind": "exponential", "delay_ms": 1, "multiplier": float("inf")},
        {"kind": "exponential", "delay_ms": 1, "multiplier": 10**400},
    ],
    ids=repr,
)
def test_a_backoff_that_makes_no_sense_is_refused(backoff):
    with pytest.raises(SettingsError, match="backoff"):
        retry_override(None, backoff)


@pytest.mark.parametrize("backoff", [True, "250", [250], object, timedelta(1)], ids=repr)
def test_a_backoff_of_another_kind_is_refused(backoff):
    with pytest.raises(
        KindRefused, match="backoff must be a number of ms, a BackoffSpec or a dict"
    ):
        retry_override(None, backoff)


# numbers


@pytest.mark.parametrize("value", [True, 1.0, "1", None, b"1", [1]], ids=repr)
def test_only_whole_numbers_are_whole_numbers(value):
    with pytest.raises(SettingsError, match="size must be a whole number, got"):
        whole_number("size", value, 0)


def test_a_number_out_of_range_is_told_with_its_range():
    with pytest.raises(LimitExceeded, match="size must be between 3 and 5, got 6"):
        whole_number("size", 6, 3, 5)


@pytest.mark.parametrize("value", [1, 1_000, MS_MAX])
def test_a_duration_is_at_least_a_millisecond_and_fits_every_clock(value):
    assert duration_ms("ttl", value) == optional_ms("ttl", value) == value


@pytest.mark.parametrize("value", [0, -1, MS_MAX + 1, 2**70])
def test_other_durations_are_refused(value):
    with pytest.raises(LimitExceeded, match="ttl must be between 1 and"):
        duration_ms("ttl", value)


def test_what_was_not_given_is_not_judged():
    assert optional_ms("ttl", None) is None
    assert optional_whole("cap", None) is None


# delays


@pytest.mark.parametrize(
    ("delay_ms", "delay"),
    [(None, None), (0, None), (0.0, None), (0.9, None), (None, timedelta(0))],
    ids=repr,
)
def test_no_delay_is_no_wait(delay_ms, delay):
    assert wait(delay_ms, delay) is None


@pytest.mark.parametrize(
    ("delay_ms", "delay", "ms"),
    [
        (1, None, 1),
        (1_500.9, None, 1_500),
        (None, timedelta(seconds=2), 2_000),
        (None, timedelta(microseconds=1_999), 1),
        (30 * DAY_S * 1_000, None, 30 * DAY_S * 1_000),
    ],
    ids=repr,
)
def test_a_delay_is_a_wait_from_now(delay_ms, delay, ms):
    assert wait(delay_ms, delay) == Wait(ms, is_absolute=False)


@pytest.mark.parametrize(
    "instant",
    [
        datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC),
        datetime(2023, 11, 14, 22, 13, 20, 500_999),  # noqa: DTZ001  naive on purpose
        datetime(2023, 11, 15, 0, 13, 20, 500_000, tzinfo=timezone(timedelta(hours=2))),
    ],
    ids=["aware", "naive is UTC", "another zone"],
)
def test_an_instant_is_kept_as_one(instant):
    assert wait(instant) == Wait(1_700_000_000_500, is_absolute=True)


def test_an_instant_that_has_passed_is_still_an_instant():
    assert wait(datetime(1970, 1, 2, tzinfo=UTC)) == Wait(DAY_S * 1_000, is_absolute=True)


@pytest.mark.parametrize(
    "delay_ms",
    [-1, -0.1, float("nan"), float("inf"), float("-inf"), datetime(1969, 1, 1, tzinfo=UTC)],
    ids=repr,
)
def test_a_delay_that_is_no_time_is_refused(delay_ms):
    with pytest.raises(SettingsError, match="delay_ms must be"):
        wait(delay_ms)


@pytest.mark.parametrize(
    ("delay_ms", "delay"),
    [
        (30 * DAY_S * 1_000 + 1_000, None),
        (2**63, None),
        (10**400, None),
        (1e300, None),
        (None, timedelta(days=31)),
        (None, timedelta.max),
        (datetime(2050, 1, 1, tzinfo=UTC), None),
        (datetime.max.replace(tzinfo=UTC), None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_delay_beyond_the_reach_is_refused(delay_ms, delay):
    with pytest.raises(LimitExceeded, match=r"delay must be at most 2592000 s.*max_delay_secs"):
        wait(delay_ms, delay)


def test_without_a_reach_the_clock_is_the_limit():
    assert wait(MS_MAX // 2, days_max=0) == Wait(MS_MAX // 2, is_absolute=False)
    with pytest.raises(LimitExceeded, match="delay must be at most"):
        wait(MS_MAX * 2, days_max=0)


def test_a_negative_timedelta_is_refused():
    with pytest.raises(SettingsError, match="delay must be at least zero"):
        wait(None, timedelta(seconds=-1))


@pytest.mark.parametrize("delay_ms", [True, "5s", [5], timedelta(1)], ids=repr)
def test_a_delay_of_another_kind_is_refused_with_what_to_pass(delay_ms):
    with pytest.raises(KindRefused) as caught:
        wait(delay_ms)

    assert str(caught.value) == (
        f"delay_ms must be a number of milliseconds or a datetime, got {delay_ms!r}; "
        "five seconds are 5000, or delay=timedelta(seconds=5)"
    )
    assert isinstance(caught.value, SettingsError)
    assert isinstance(caught.value, TypeError), "the original's callers catch this"


@pytest.mark.parametrize("delay", [5, "5", datetime(2030, 1, 1, tzinfo=UTC)], ids=repr)
def test_a_delay_that_is_no_timedelta_is_refused(delay):
    with pytest.raises(KindRefused, match="delay must be a timedelta"):
        wait(None, delay)


def test_two_delays_are_one_too_many():
    with pytest.raises(SettingsError, match="delay_ms and delay must be given one at a time"):
        wait(1, timedelta(1))
