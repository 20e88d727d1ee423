"""How long a failed job waits."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.model.job_options import Backoff
from chasquimq.model.retry import BackoffDefaults, delay_ms

STILL = BackoffDefaults(jitter_ms=0)
DICE = random.Random(5)


class Loaded:
    """Dice that always show their highest face."""

    def randrange(self, stop):
        return stop - 1


@pytest.mark.parametrize(
    ("n", "wait_ms"), [(1, 100), (2, 200), (3, 400), (9, 25_600), (10, 30_000), (5_000, 30_000)]
)
def test_without_a_rule_the_wait_doubles_up_to_the_cap(n, wait_ms):
    assert delay_ms(n, None, STILL, DICE) == wait_ms


@pytest.mark.parametrize("n", [1, 2, 50])
def test_a_fixed_rule_waits_the_same_every_time(n):
    assert delay_ms(n, Backoff.fixed(250), STILL, DICE) == 250


@pytest.mark.parametrize(("n", "wait_ms"), [(1, 10), (2, 15), (3, 22), (4, 33), (5, 50), (6, 50)])
def test_an_exponential_rule_is_floored_and_capped(n, wait_ms):
    rule = Backoff.exponential(10, multiplier=1.5, max_delay_ms=50)

    assert delay_ms(n, rule, STILL, DICE) == wait_ms


def test_an_unknown_kind_behaves_as_exponential():
    rule = Backoff("linear", 5, None, None, None)

    assert delay_ms(3, rule, STILL, DICE) == 20


def test_a_kind_in_upper_case_is_unknown():
    assert delay_ms(3, Backoff("FIXED", 5, None, None, None), STILL, DICE) == 20


def test_a_fixed_rule_meets_the_workers_cap_where_it_names_none():
    assert delay_ms(1, Backoff.fixed(60_000), STILL, DICE) == 30_000


def test_slots_left_open_are_filled_by_the_worker():
    defaults = BackoffDefaults(max_backoff_ms=70, multiplier=3.0, jitter_ms=11)

    assert delay_ms(2, Backoff.exponential(10), defaults, Loaded()) == 40
    assert delay_ms(9, Backoff.exponential(10), defaults, Loaded()) == 80


def test_slots_of_zero_are_not_left_open():
    rule = Backoff("exponential", 50, 0, 0.0, 0)

    assert delay_ms(1, rule, BackoffDefaults(), DICE) == 0


def test_jitter_is_added_after_the_cap_and_never_reaches_its_limit():
    assert delay_ms(1, Backoff.fixed(50), BackoffDefaults(), Loaded()) == 149
    assert delay_ms(99, None, BackoffDefaults(), Loaded()) == 30_099


@given(st.integers(1, 40))
def test_jitter_only_lengthens_the_wait(n):
    least = delay_ms(n, None, STILL, DICE)

    assert least <= delay_ms(n, None, BackoffDefaults(), DICE) < least + 100


@pytest.mark.parametrize(
    ("delay", "multiplier", "n", "wait_ms"),
    [
        pytest.param(0, 2.0, 5_000, 30_000, id="zero times infinity is the cap"),
        pytest.param(5, math.nan, 2, 30_000, id="no number is the cap"),
        pytest.param(5, math.inf, 2, 30_000, id="infinity is the cap"),
        pytest.param(5, -2.0, 2, 0, id="a negative product is no wait"),
        pytest.param(5, -2.0, 5_001, 30_000, id="a huge positive power of a negative"),
        pytest.param(5, -2.0, 5_002, 0, id="a huge negative power of a negative"),
        pytest.param(100, 0.5, 3, 25, id="a shrinking wait"),
        pytest.param(2**64 - 1, 2.0, 1, 30_000, id="the longest delay there is"),
    ],
)
def test_odd_numbers_stay_within_the_cap(delay, multiplier, n, wait_ms):
    rule = Backoff.exponential(delay, multiplier=multiplier)

    assert delay_ms(n, rule, STILL, DICE) == wait_ms


@given(
    st.integers(1, 10**6),
    st.builds(
        Backoff,
        kind=st.sampled_from(["fixed", "exponential", "linear"]),
        delay_ms=st.integers(0, 2**64 - 1),
        max_delay_ms=st.none() | st.integers(0, 2**64 - 1),
        multiplier=st.none() | st.floats(),
        jitter_ms=st.none() | st.integers(0, 10**6),
    ),
)
def test_any_rule_gives_a_whole_wait_between_zero_and_cap_plus_jitter(n, rule):
    cap_ms = 30_000 if rule.max_delay_ms is None else rule.max_delay_ms
    jitter_ms = 100 if rule.jitter_ms is None else rule.jitter_ms

    wait_ms = delay_ms(n, rule, BackoffDefaults(), DICE)

    assert isinstance(wait_ms, int)
    assert 0 <= wait_ms <= cap_ms + jitter_ms


def test_the_first_retry_is_number_one():
    with pytest.raises(AssertionError):
        delay_ms(0, None, STILL, DICE)


def test_an_int_multiplier_becomes_a_float():
    assert type(Backoff.exponential(5, multiplier=3).multiplier) is float
