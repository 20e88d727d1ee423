"""Repeatable jobs: when the first window opens, and what each policy makes of missed ones."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chasquimq.errors import SettingsError
from chasquimq.model.schedule import (
    FIRES_PER_TICK_MAX,
    GRACE_MS,
    INSTANT_MS_MAX,
    TICK_MS,
    Cron,
    Every,
    MissedFires,
    Pattern,
    Plan,
    first_fire,
    plan_fires,
)

SKIP, FIRE_ONCE, FIRE_ALL = MissedFires.skip(), MissedFires.fire_once(), MissedFires.fire_all(3)
POLICIES = [SKIP, FIRE_ONCE, FIRE_ALL]

MINUTE_MS = 60_000
T0 = 1_893_456_000_000
MINUTELY = [Every(MINUTE_MS), Cron("* * * * *"), Cron("0 * * * * *", "Europe/Madrid")]

often = settings(deadline=None, max_examples=300, database=None)


@pytest.mark.parametrize("interval_ms", [0, -1, 1.5, True, "60000", None, INSTANT_MS_MAX + 1])
def test_an_interval_is_a_positive_whole_number(interval_ms: object):
    with pytest.raises(SettingsError, match="interval_ms must be a whole number from 1"):
        Every(interval_ms)  # pyright: ignore[reportArgumentType] the point


@pytest.mark.parametrize(("expression", "tz"), [("bad", None), ("* * * * *", "Mars/Base")])
def test_a_cron_pattern_is_checked_at_birth(expression: str, tz: str | None):
    with pytest.raises(SettingsError):
        Cron(expression, tz)


def test_patterns_are_values():
    assert Cron("0 2 * * *", "UTC") == Cron("0 2 * * *", "UTC")
    assert Cron("0 2 * * *", "UTC") != Cron("0 2 * * *")
    assert {Every(5), Every(5)} == {Every(5)}
    assert pickle.loads(pickle.dumps(Cron("0 2 * * *", "Asia/Tokyo"))) == Cron(
        "0 2 * * *", "Asia/Tokyo"
    )


@pytest.mark.parametrize("max_catchup", [0, -1, 2.5, True, None, "3"])
def test_catching_up_needs_a_positive_whole_number(max_catchup: object):
    with pytest.raises(SettingsError, match="max_catchup must be a whole number from 1"):
        MissedFires.fire_all(max_catchup)  # pyright: ignore[reportArgumentType] the point


def test_only_catching_up_takes_a_number():
    with pytest.raises(SettingsError, match="max_catchup must be left out"):
        MissedFires("skip", 3)


def test_an_unknown_policy_is_refused():
    with pytest.raises(SettingsError, match="missed_fires must be skip, fire-once or fire-all"):
        MissedFires("later")  # pyright: ignore[reportArgumentType] the point


@pytest.mark.parametrize(
    ("pattern", "start_after_ms", "first_ms"),
    [
        (Every(250), None, T0 + 250),
        (Every(250), T0 - 5_000, T0 + 250),
        (Every(250), T0 + 5_000, T0 + 5_250),
        (Cron("* * * * *"), None, T0 + MINUTE_MS),
        (Cron("0 2 * * *", "America/New_York"), T0, 1_893_481_200_000),
        (Cron("*/5 * * * *", "+05:30"), T0 + 1, T0 + 5 * MINUTE_MS),
    ],
)
def test_the_first_fire_is_the_first_window_after_now_and_the_start(
    pattern: Pattern, start_after_ms: int | None, first_ms: int
):
    assert first_fire(pattern, T0, start_after_ms, None) == first_ms


def test_a_first_fire_exactly_at_the_end_still_counts():
    assert first_fire(Every(250), T0, None, T0 + 250) == T0 + 250


def test_an_end_before_the_first_fire_is_refused():
    with pytest.raises(SettingsError) as refused:
        first_fire(Every(250), T0, None, T0 + 249)

    assert refused.value.name == "end_before_ms"
    assert str(T0 + 250) in str(refused.value)


def test_a_pattern_whose_last_window_is_past_has_no_first_fire():
    with pytest.raises(SettingsError, match="up to the year 5000"):
        first_fire(Cron("0 0 0 1 1 * 2029"), T0)


@pytest.mark.parametrize("name", ["start_after_ms", "end_before_ms"])
@pytest.mark.parametrize("instant_ms", [-1, 1.5, True, "0", INSTANT_MS_MAX + 1])
def test_start_and_end_are_instants(name: str, instant_ms: object):
    with pytest.raises(SettingsError, match=f"{name} must be a whole number"):
        first_fire(Every(250), T0, **{name: instant_ms})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_that_has_not_come_fires_nothing(policy: MissedFires):
    assert plan_fires(Every(250), T0 + 1, T0, policy) == Plan([], T0 + 1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pattern", MINUTELY)
@pytest.mark.parametrize("late_ms", [0, 1, 30_000, MINUTE_MS])
def test_a_late_window_fires_whatever_the_policy_while_its_successor_is_not_past(
    pattern: Pattern, policy: MissedFires, late_ms: int
):
    assert plan_fires(pattern, T0, T0 + late_ms, policy) == Plan([T0], T0 + MINUTE_MS)


@pytest.mark.parametrize("pattern", MINUTELY)
@pytest.mark.parametrize(
    ("policy", "fires"),
    [
        (SKIP, [T0 + 10 * MINUTE_MS]),
        (FIRE_ONCE, [T0]),
        (MissedFires.fire_all(1), [T0 + 10 * MINUTE_MS]),
        (FIRE_ALL, [T0, T0 + MINUTE_MS, T0 + 10 * MINUTE_MS]),
        (MissedFires.fire_all(100), [T0 + i * MINUTE_MS for i in range(11)]),
    ],
)
def test_windows_missed_in_a_stall_follow_the_policy(
    pattern: Pattern, policy: MissedFires, fires: list[int]
):
    now_ms = T0 + 10 * MINUTE_MS + 30_000

    assert plan_fires(pattern, T0, now_ms, policy) == Plan(fires, T0 + 11 * MINUTE_MS)


@pytest.mark.parametrize("pattern", MINUTELY)
@pytest.mark.parametrize("late_ms", [0, 1, GRACE_MS])
def test_skip_keeps_the_window_that_is_due_right_now_after_a_stall(pattern: Pattern, late_ms: int):
    window_ms = T0 + 10 * MINUTE_MS

    plan = plan_fires(pattern, T0, window_ms + late_ms, SKIP)

    assert plan == Plan([window_ms], window_ms + MINUTE_MS)


@pytest.mark.parametrize("late_ms", [1_001, 30_000, MINUTE_MS - 1])
def test_skip_fires_the_newest_window_however_late_while_its_successor_is_not_due(late_ms: int):
    newest_ms = T0 + 10 * MINUTE_MS

    plan = plan_fires(Every(MINUTE_MS), T0, newest_ms + late_ms, SKIP, grace_ms=1_000)

    assert plan == Plan([newest_ms], newest_ms + MINUTE_MS)


def test_skip_lets_a_window_go_once_its_successor_is_due_and_it_is_older_than_the_grace():
    now_ms = T0 + MINUTE_MS + 1

    assert plan_fires(Every(MINUTE_MS), T0, now_ms, SKIP).fires == [T0 + MINUTE_MS]


@pytest.mark.parametrize(
    ("pattern", "away_ms"),
    [
        (Cron("30 7 * * *", "America/Lima"), 3 * 86_400_000 + 3 * 3_600_000),
        (Cron("* * * 1 *"), 300 * 86_400_000),
        (Cron("*/7 * * * * *"), 10**8),
        (Every(86_400_000), 40 * 86_400_000 + 5),
    ],
)
def test_skip_finds_the_newest_window_after_a_long_stall(pattern: Pattern, away_ms: int):
    due_ms = pattern.next_after(T0)
    now_ms = due_ms + away_ms

    (newest_ms,) = plan_fires(pattern, due_ms, now_ms, SKIP, grace_ms=0).fires

    assert due_ms <= newest_ms <= now_ms < pattern.next_on_cadence(due_ms, newest_ms)


def test_skip_fires_every_window_of_a_short_interval_within_the_grace():
    plan = plan_fires(Every(250), T0 + 250, T0 + 10_000, SKIP, grace_ms=999)

    assert plan == Plan([T0 + 9_250, T0 + 9_500, T0 + 9_750, T0 + 10_000], T0 + 10_250)


@pytest.mark.parametrize("policy", POLICIES)
def test_windows_within_the_grace_are_not_missed_and_all_fire(policy: MissedFires):
    plan = plan_fires(Every(250), T0, T0 + 1_000, policy, grace_ms=1_000)

    assert plan == Plan([T0 + i * 250 for i in range(5)], T0 + 1_250)


@pytest.mark.parametrize("policy", POLICIES)
@often
@given(
    interval_ms=st.integers(1, 3 * TICK_MS),
    tick_gaps_ms=st.lists(st.integers(TICK_MS, 2 * TICK_MS), min_size=1, max_size=8),
)
def test_ticks_that_run_late_by_less_than_a_tick_fire_every_window_once(
    policy: MissedFires, interval_ms: int, tick_gaps_ms: list[int]
):
    fires: list[int] = []
    next_ms: int | None = T0
    last_tick_ms = T0

    for last_tick_ms in accumulate(tick_gaps_ms, initial=T0):
        assert next_ms is not None
        plan = plan_fires(Every(interval_ms), next_ms, last_tick_ms, policy)
        fires, next_ms = fires + plan.fires, plan.next_ms

    settled = fires if next_ms is None or next_ms > last_tick_ms else [*fires, next_ms]
    assert settled == list(range(T0, last_tick_ms + 1, interval_ms))


@often
@given(
    pattern=st.one_of(
        st.integers(1, 10**7).map(Every),
        st.sampled_from([*MINUTELY, Cron("*/7 * * * * *"), Cron("30 1 * * *", "Europe/London")]),
    ),
    policy=st.sampled_from(POLICIES),
    late_ms=st.integers(0, 10**8),
    grace_ms=st.integers(0, 10_000),
)
def test_a_plan_fires_due_windows_in_order_and_waits_for_one_that_is_not_past(
    pattern: Pattern, policy: MissedFires, late_ms: int, grace_ms: int
):
    now_ms = T0 + late_ms

    plan = plan_fires(pattern, T0, now_ms, policy, grace_ms=grace_ms)

    assert plan.fires == sorted(set(plan.fires))
    assert all(T0 <= fire_ms <= now_ms for fire_ms in plan.fires)
    assert plan.next_ms is not None
    assert plan.next_ms >= now_ms
    assert plan.next_ms not in plan.fires


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("late_ms", [0, 10_000, 10 * 86_400_000])
def test_the_last_window_of_a_pattern_fires_however_late_and_nothing_follows(
    policy: MissedFires, late_ms: int
):
    new_year = Cron("0 0 0 1 1 * 2030")

    assert plan_fires(new_year, T0, T0 + late_ms, policy) == Plan([T0], None)


def test_a_plan_that_reaches_the_last_window_says_so():
    two_days = Cron("0 0 0 1,2 1 * 2030")

    plan = plan_fires(two_days, T0, T0 + 10 * 86_400_000, FIRE_ALL)

    assert plan == Plan([T0, T0 + 86_400_000], None)


@pytest.mark.parametrize("pattern", [Every(1), Every(1_000), Cron("* * * * * *")])
def test_one_tick_fires_no_more_than_the_cap(pattern: Pattern):
    now_ms = T0 + 20_000 * 1_000

    plan = plan_fires(pattern, T0, now_ms, MissedFires.fire_all(10**9))

    assert len(plan.fires) == FIRES_PER_TICK_MAX
    assert (plan.fires[0], plan.fires[-1]) == (T0, now_ms)
    assert plan.next_ms is not None
    assert plan.next_ms > now_ms


@pytest.mark.parametrize("policy", [SKIP, MissedFires.fire_all(10**9)])
def test_the_newest_of_more_windows_within_the_grace_than_a_tick_fires_is_among_them(
    policy: MissedFires,
):
    now_ms = T0 + 20_000

    for grace_ms in (15_000, 20_000):
        fires = plan_fires(Every(1), T0, now_ms, policy, grace_ms=grace_ms).fires

        assert (len(fires), fires[-1]) == (FIRES_PER_TICK_MAX, now_ms)


@often
@given(
    pattern=st.one_of(st.integers(1, 10**7).map(Every), st.sampled_from(MINUTELY)),
    max_catchup=st.integers(1, 12),
    late_ms=st.integers(0, 10**8),
)
def test_a_cap_on_catching_up_lets_fires_between_go_and_never_the_newest(
    pattern: Pattern, max_catchup: int, late_ms: int
):
    now_ms = T0 + late_ms

    fires = plan_fires(pattern, T0, now_ms, MissedFires.fire_all(max_catchup), grace_ms=0).fires

    assert 1 <= len(fires) <= max_catchup
    assert fires[-1] <= now_ms <= pattern.next_on_cadence(T0, fires[-1])


@pytest.mark.parametrize(
    ("policy", "steps"),
    [(SKIP, [4]), (FIRE_ONCE, [0]), (FIRE_ALL, [0, 1, 4]), (MissedFires.fire_all(9), range(5))],
)
def test_the_newest_fire_of_a_plan_that_has_ended_meanwhile_is_its_last_one(
    policy: MissedFires, steps: Iterable[int]
):
    end_ms, now_ms = T0 + 4 * MINUTE_MS + 7, T0 + 60 * MINUTE_MS

    plan = plan_fires(Every(MINUTE_MS), T0, now_ms, policy, end_ms=end_ms)

    assert plan.fires == [T0 + step * MINUTE_MS for step in steps]
    assert plan.next_ms is not None
    assert plan.next_ms > end_ms


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_whose_next_window_lies_after_its_end_fires_nothing(policy: MissedFires):
    assert plan_fires(Every(MINUTE_MS), T0, T0 + MINUTE_MS, policy, end_ms=T0 - 1).fires == []


@pytest.mark.parametrize("policy", [SKIP, FIRE_ONCE, FIRE_ALL])
@pytest.mark.parametrize("pattern", [Every(1_000), Cron("* * * * * *")])
def test_a_century_of_missed_windows_costs_no_more_than_a_minute_of_them(
    pattern: Pattern, policy: MissedFires
):
    now_ms = T0 + 100 * 365 * 86_400_000

    fastest_s = min(_time_of(pattern, now_ms, policy) for _ in range(20))

    assert fastest_s < 0.005


def _time_of(pattern: Pattern, now_ms: int, policy: MissedFires) -> float:
    started_s = time.thread_time()
    plan_fires(pattern, T0, now_ms, policy)
    return time.thread_time() - started_s
