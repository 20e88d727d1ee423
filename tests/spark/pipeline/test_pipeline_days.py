"""A day that is made again from bronze is the same as before."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from chasquimq.spark.lake.lake import Change, Lake, Once
from support.attempts import failed

RETRIED = 1
QUESTIONS = [
    "select * from silver_attempts order by job_id, attempt",
    "select * from silver_jobs order by job_id",
    "select * exclude (run_kll, wait_kll) from gold_minute order by all",
    "select kll_sketch_get_n_double(run_kll) n from gold_minute order by all",
    "select * from gold_failures order by all",
    "select * from gold_slo order by all",
    "select * from gold_retries order by all",
]
pytestmark = pytest.mark.takes_turns


def test_a_day_that_is_made_again_is_the_same(feed, pipeline, ask):
    feed.rows([("a", 1, RETRIED, failed()), ("a", 2, 0, None), ("b", 1, 0, None)])
    feed.attempts(40)
    pipeline().once()
    before = [ask(question) for question in QUESTIONS]

    run = pipeline().backfill(datetime.now(UTC).date())

    assert run.rows == 43
    assert [ask(question) for question in QUESTIONS] == before


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({}, {"mail": 1_000}),
        ({"other": 5}, {"mail": 1_000}),
        ({"mail": 200}, {"mail": 200}),
        ({"*": 300}, {"mail": 300}),
    ],
)
def test_targets_that_a_day_had_stay_unless_they_are_told_anew(feed, pipeline, ask, told, wanted):
    feed.attempts(12)
    pipeline().once()

    pipeline(slo=told).backfill(datetime.now(UTC).date())

    rows = ask(
        "select name, target_ms, (sum(within) + sum(breached))::int n from gold_slo group by all"
    )
    assert {row["name"]: row["target_ms"] for row in rows} == wanted
    assert [row["n"] for row in rows] == [12]


def test_a_day_that_was_damaged_is_whole_again_whatever_the_clock_says(
    feed, pipeline, settings, ask
):
    feed.attempts(12)
    pipeline().once()
    before = [ask(question) for question in QUESTIONS]
    for name in ("silver_attempts", "gold_minute"):
        Lake(settings.lake).table(name).delete()
        # When it was last made again, the clock was an hour ahead.
        ahead_us = time.time_ns() // 1_000 + 3_600_000_000
        Lake(settings.lake).commit(Change(table=name), Once("chasqui-backfill", ahead_us))

    pipeline().backfill(datetime.now(UTC).date())

    assert [ask(question) for question in QUESTIONS] == before
