"""Attempts as parts of gold, and parts that merge to the same as the whole."""

from __future__ import annotations

import random
from datetime import timedelta

import pyarrow as pa
import pytest

from chasquimq.spark.lake.sketches import quantiles
from chasquimq.spark.lake.tables import BRONZE_ATTEMPTS, TABLES
from chasquimq.spark.pipeline.tables.gold import gold_failures, gold_minute, gold_retries, gold_slo
from support.rows import NOON, after, attempt, batch, failure

FIGURES = ("started", "completed", "failed", "retried", "dead")


@pytest.fixture
def frame(spark):
    """Attempts as Spark has them."""
    return lambda *rows: spark.createDataFrame(
        pa.Table.from_batches([batch("bronze_attempts", *rows)])
    )


def figures(rows) -> dict:
    return {
        (row["name"], row["window_start"]): tuple(row[name] for name in FIGURES)
        for row in rows.toArrow().to_pylist()
    }


def totals(rows) -> dict[str, tuple[int, ...]]:
    found = {}
    for row in rows.toArrow().to_pylist():
        before = found.get(row["name"], (0,) * len(FIGURES))
        found[row["name"]] = tuple(a + row[b] for a, b in zip(before, FIGURES, strict=True))
    return found


def test_a_minute_counts_each_outcome(frame):
    rows = gold_minute(
        frame(
            attempt(),
            attempt(name="charge"),
            failure(),
            failure(outcome="dead"),
            attempt(outcome="rejected", attempt=0, started_at=None, ready_at=NOON),
            attempt(outcome="snoozed"),
            attempt(outcome="stale"),
        )
    )

    assert rows.columns == TABLES["gold_minute"].names
    assert totals(rows) == {"send": (5, 1, 2, 1, 2), "charge": (1, 1, 0, 0, 0)}


def test_a_start_counts_where_it_was_and_an_end_where_it_was(frame):
    rows = gold_minute(frame(attempt(started_at=after(59), duration_us=2_000_000)))

    assert figures(rows) == {
        ("send", NOON): (1, 0, 0, 0, 0),
        ("send", after(60)): (0, 1, 0, 0, 0),
    }


def test_sketches_hold_milliseconds_of_runs_and_waits(frame):
    (row,) = gold_minute(frame(attempt(), attempt(duration_us=2_500))).toArrow().to_pylist()

    assert quantiles([row["run_kll"]], [0.0, 1.0]) == [1.5, 2.5]
    assert quantiles([row["wait_kll"]], [0.5]) == [20.0]


def test_merged_sketches_are_right_within_one_and_a_half_percent_of_rank(frame, spark):
    rng = random.Random(11)
    values = [rng.expovariate(1 / 5_000) for _ in range(60_000)]
    every = batch("bronze_attempts", *(attempt(duration_us=int(v)) for v in values))
    parts = [every.slice(at, 5_000) for at in range(0, len(values), 5_000)]
    sketches = [
        row["run_kll"]
        for part in parts
        for row in gold_minute(spark.createDataFrame(pa.Table.from_batches([part])))
        .toArrow()
        .to_pylist()
    ]

    ordered = sorted(int(v) / 1_000 for v in values)
    ranks = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
    found = quantiles(sketches, ranks)
    errors = [
        abs(sum(v <= value for v in ordered) / len(ordered) - rank)
        for rank, value in zip(ranks, found, strict=True)
    ]
    assert max(errors) < 0.015


def test_failures_are_counted_by_fingerprint(frame):
    rows = gold_failures(
        frame(
            attempt(),
            failure(),
            failure(started_at=after(1), outcome="dead", error="no route to b"),
            failure(fingerprint="f2"),
            attempt(outcome="rejected", attempt=0, started_at=None, error="malformed"),
        )
    )

    found = {row["fingerprint"]: row for row in rows.toArrow().to_pylist()}
    assert rows.columns == TABLES["gold_failures"].names
    assert {name: (row["failed"], row["dead"]) for name, row in found.items()} == {
        "f1": (2, 1),
        "f2": (1, 0),
        "": (0, 1),
    }
    assert found["f1"]["first_seen"] == NOON + timedelta(microseconds=1_500)
    assert found["f1"]["last_seen"] == after(1) + timedelta(microseconds=1_500)
    assert found["f1"]["run_us"] == 3_000


def test_only_names_with_a_target_are_held_against_it(frame):
    late = attempt(started_at=after(2), ready_at=NOON)
    rows = gold_slo(
        frame(attempt(), late, failure(outcome="dead"), failure(), attempt(name="other")),
        {"send": 1_000},
        0.01,
    )

    (row,) = rows.toArrow().to_pylist()
    assert rows.columns == TABLES["gold_slo"].names
    assert (row["name"], row["target_ms"], row["within"], row["breached"]) == ("send", 1_000, 1, 2)
    assert row["burn_rate"] == pytest.approx(2 / 3 / 0.01)


def test_a_star_is_the_target_of_all_other_names(frame):
    rows = gold_slo(frame(attempt(), attempt(name="other")), {"send": 5, "*": 50}, 0.01)

    targets = {row["name"]: row["target_ms"] for row in rows.toArrow().to_pylist()}
    assert targets == {"send": 5, "other": 50}


@pytest.mark.parametrize(
    ("row", "is_within"),
    [
        (attempt(enqueued_at=after(-3_600), due_at=NOON, ready_at=NOON), True),
        (attempt(enqueued_at=after(-3_600)), True),
        (attempt(enqueued_at=after(-3_600), attempt=2), False),
    ],
    ids=["delayed on purpose", "waited elsewhere", "retried for an hour"],
)
def test_a_target_counts_from_when_a_job_could_have_been_done(frame, row, is_within):
    (found,) = gold_slo(frame(row), {"send": 1_000}, 0.01).toArrow().to_pylist()

    assert bool(found["within"]) == is_within


def test_retries_tell_what_an_attempt_was_worth_and_when_the_wave_comes(frame):
    rows = gold_retries(
        frame(
            attempt(),
            failure(backoff_ms=120_000),
            failure(backoff_ms=125_000),
            attempt(attempt=2),
            attempt(outcome="rejected", attempt=0),
        )
    )

    found = {(row["attempt"], row["wave_at"]): row for row in rows.toArrow().to_pylist()}
    assert rows.columns == TABLES["gold_retries"].names
    assert found.keys() == {(1, None), (1, after(120)), (2, None)}
    assert found[1, after(120)]["retried"] == 2
    assert found[1, after(120)]["added_delay_ms"] == 245_000
    assert (found[1, None]["completed"], found[1, None]["success_share"]) == (1, 1.0)


def test_the_columns_of_attempts_are_all_that_gold_needs(spark):
    nothing = spark.createDataFrame([], BRONZE_ATTEMPTS.ddl)

    assert gold_minute(nothing).count() == gold_failures(nothing).count() == 0
