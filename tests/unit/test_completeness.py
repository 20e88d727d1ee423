"""How complete a day is: what is missing for certain, and what a gap may explain."""

from __future__ import annotations

import pytest

from chasquimq.wire.history import DayCounts, judge_days


def day(server: int | None, rows: int, **facts) -> DayCounts:
    return DayCounts(
        queue="mail", day="2026-11-16", server_finished=server, rows_finished=rows, **facts
    )


def judged(*days: DayCounts) -> list[tuple[int | None, int | None, int | None]]:
    return [(one.missing_proven, one.missing_maybe, one.surplus) for one in judge_days(days)]


def test_rows_for_all_that_the_server_counted_are_complete():
    assert judged(day(100, 100)) == [(0, 0, 0)]


def test_what_no_gap_explains_is_missing_for_certain():
    assert judged(day(100, 90)) == [(10, 0, 0)]


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({"rows_lost": 4}, (6, 4, 0)),
        ({"rows_lost": 40}, (0, 10, 0)),
        ({"has_unknown_gap": True}, (0, 10, 0)),
        ({"unproven": 3}, (7, 3, 0)),
        ({"is_settled": False}, (0, 10, 0)),
    ],
    ids=["some lost", "more lost", "a gap of unknown size", "unproven ends", "still moving"],
)
def test_what_a_gap_may_explain_is_not_proven(facts, verdict):
    assert judged(day(100, 90, **facts)) == [verdict]


def test_rows_that_the_server_did_not_count_are_too_many():
    assert judged(day(100, 103)) == [(0, 0, 3)]


def test_a_server_that_does_not_count_proves_nothing():
    assert judged(day(None, 100)) == [(None, None, None)]


@pytest.mark.parametrize(
    ("first", "second"), [(50, 60), (60, 50)], ids=["rows come late", "the count comes late"]
)
def test_what_midnight_divides_is_not_missing(first, second):
    assert judged(day(55, first), day(55, second)) == [(0, 0, 0), (0, 0, 0)]


def test_midnight_hides_no_more_than_it_divides():
    assert judged(day(60, 50), day(55, 60)) == [(5, 0, 0), (0, 0, 0)]
