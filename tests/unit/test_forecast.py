"""Where a backlog is going."""

from __future__ import annotations

import pytest

from chasquimq.model.forecast import Sample, forecast


def sample(at_s: float, *, ready: int = 0, added: int | None = 0, left: int | None = 0, **other):
    told = {"running": 0, "delayed": 0, "dlq": 0, "oldest_ms": None, "consumers": 2}
    return Sample(
        queue="mail", at_ms=int(at_s * 1_000), ready=ready, added=added, left=left, **told | other
    )


def test_one_sample_tells_nothing_about_rates():
    made = forecast([sample(1)])

    assert (made.arrival_rate, made.departure_rate, made.never_clears) == (None, None, None)


def test_a_queue_that_is_worked_off_faster_than_it_fills_clears():
    made = forecast([sample(0, ready=400), sample(10, ready=300, added=100, left=200)])

    assert (made.arrival_rate, made.departure_rate) == (10.0, 20.0)
    assert made.clears_at_ms == 10_000 + 30_000
    assert made.never_clears is False


def test_a_queue_that_fills_faster_never_clears():
    made = forecast([sample(0), sample(10, ready=100, added=200, left=100)])

    assert (made.clears_at_ms, made.never_clears) == (None, True)


def test_a_queue_that_only_keeps_up_never_clears_either():
    made = forecast([sample(0, ready=50), sample(10, ready=50, added=100, left=101)])

    assert made.never_clears is True


def test_an_empty_queue_is_clear_now():
    assert forecast([sample(0), sample(10, added=5, left=5)]).clears_at_ms == 10_000


def test_twice_the_arrivals_need_twice_the_workers():
    made = forecast([sample(0), sample(10, ready=100, added=200, left=100)])

    assert made.workers_needed == 4


def test_a_queue_that_grows_breaks_its_target_when_it_is_too_long_for_the_pace():
    made = forecast([sample(0), sample(10, ready=100, added=200, left=100)], target_ms=20_000)

    # At 10 a second 200 jobs take 20 s; it has 100 and grows by 10 a second.
    assert made.breach_at_ms == 10_000 + 10_000


def test_a_target_that_is_broken_already_is_broken_now():
    made = forecast([sample(0), sample(10, ready=900, added=1_000, left=100)], target_ms=1_000)

    assert made.breach_at_ms == 10_000


def test_a_queue_that_shrinks_breaks_no_target():
    made = forecast([sample(0, ready=10), sample(10, ready=5, added=0, left=5)], target_ms=60_000)

    assert made.breach_at_ms is None


@pytest.mark.parametrize(
    "last", [sample(10, added=None, left=None), sample(10, added=1, left=1)], ids=["6.2", "reset"]
)
def test_a_counter_that_is_not_there_or_began_anew_tells_nothing(last):
    made = forecast([sample(0, added=100, left=100), last])

    assert (made.arrival_rate, made.workers_needed) == (None, None)


def test_only_the_last_minute_counts():
    old = sample(0, added=0, left=0)
    recent = [sample(1_000, added=10_000, left=10_000), sample(1_010, added=10_010, left=10_010)]

    assert forecast([old, *recent]).arrival_rate == 1.0


@pytest.mark.parametrize(
    ("arrived", "left", "consumers", "needed"),
    [(300, 100, 1, 3), (210, 70, 7, 21), (29, 29, 29, 29), (31, 30, 30, 31)],
)
def test_no_worker_is_asked_for_because_of_a_fraction_that_is_none(
    arrived, left, consumers, needed
):
    first = sample(0, ready=1, consumers=consumers)
    last = sample(7, ready=arrived - left + 1, added=arrived, left=left, consumers=consumers)

    assert forecast([first, last]).workers_needed == needed


def test_how_many_workers_an_idle_queue_needs_nobody_can_tell():
    made = forecast([sample(0, consumers=10), sample(10, added=50, left=50, consumers=10)])

    assert made.workers_needed is None


def test_where_looks_are_seldom_the_one_before_the_last_minute_counts():
    looks = [
        sample(0),
        sample(300, added=100, left=100),
        sample(600, added=700, left=400, ready=300),
    ]

    made = forecast(looks)

    assert (made.arrival_rate, made.departure_rate) == (2.0, 1.0)
