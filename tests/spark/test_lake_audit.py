"""The audit of a lake, without a JVM: what is missing, what is odd, and what nobody can know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from chasquimq.spark.audit import audit
from chasquimq.spark.lake import Change, Lake
from chasquimq.spark.lake_files import write_table
from support.rows import batch

# Yesterday, so that nothing is on its way any more.
NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
DAY = NOON.date()
HISTORY = {"mail": "history"}
EVENTS = {"mail": "events"}


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create_missing()
    return lake


def append(lake: Lake, table: str, *rows: dict) -> None:
    full = [{"queue": "mail", "event_date": DAY} | row for row in rows]
    lake.commit(Change(table=table, adds=write_table(lake.path, table, batch(table, *full), "t")))


def sample(at_s: int, added: int | None, left: int | None, finished: int | None, **more) -> dict:
    depth = 0 if added is None or left is None else added - left
    return {
        "sampled_at": NOON + timedelta(seconds=at_s), "entries_added": added, "ready": depth,
        "running": 0, "finished": finished, "arrived": finished,
    } | more  # fmt: skip


def attempt(job_id: str = "a", outcome: str = "completed", at_s: float = 0, **more) -> dict:
    return {
        "job_id": job_id, "outcome": outcome, "attempt": 1, "deliveries": 1,
        "ended_at": NOON + timedelta(seconds=at_s),
    } | more  # fmt: skip


def audited(lake: Lake, channels=None, alive=()) -> dict:
    (row,) = audit(lake, channels or HISTORY, alive)
    return row


def test_what_had_left_before_the_first_look_counts_for_the_first_day(lake):
    append(lake, "silver_attempts", *(attempt(f"j{at}") for at in range(5)))
    append(lake, "gold_backlog", sample(0, 3, 3, None), sample(60, 5, 5, 2))

    row = audited(lake)

    assert (row["server_finished"], row["rows_finished"]) == (5, 5)
    assert (row["missing_proven"], row["missing_maybe"], row["surplus"]) == (0, 0, 0)
    assert row["is_settled"]


def test_later_days_count_what_left_on_them(lake):
    before = NOON - timedelta(days=1)
    append(lake, "gold_backlog", sample(0, 7, 7, None) | {
        "event_date": before.date(), "sampled_at": before})  # fmt: skip
    append(lake, "gold_backlog", sample(0, 9, 9, 2))
    append(
        lake, "silver_attempts", *(attempt(f"old{at}", event_date=before.date()) for at in range(7))
    )
    append(lake, "silver_attempts", attempt("a"), attempt("b"))

    rows = {str(row["event_date"]): row for row in audit(lake, HISTORY, ())}

    assert rows[DAY.isoformat()]["server_finished"] == 2
    assert rows[DAY.isoformat()]["rows_finished"] == 2
    assert rows[before.date().isoformat()]["server_finished"] == 7


def test_attempts_that_did_not_take_their_job_along_are_not_counted(lake):
    append(
        lake, "silver_attempts",
        attempt("a"), attempt("b", "retried"), attempt("c", "snoozed"), attempt("d", "dead"),
        attempt("", "rejected", attempt=0), attempt("e", "stale"), attempt("f", "unproven"),
    )  # fmt: skip
    append(lake, "gold_backlog", sample(0, 5, 5, None))

    row = audited(lake)

    assert row["rows_finished"] == 5
    assert (row["stale"], row["unproven"]) == (1, 1)


def test_rows_that_are_missing_without_a_reason_are_proven(lake):
    append(lake, "silver_attempts", attempt("a"))
    append(lake, "gold_backlog", sample(0, 4, 4, None))

    assert (audited(lake)["missing_proven"], audited(lake)["missing_maybe"]) == (3, 0)


@pytest.mark.parametrize(
    ("table", "row", "verdict"),
    [
        ("bronze_gaps", {"lost": 2, "unit": "attempts", "cause": "lost"}, (1, 2)),
        ("bronze_gaps", {"lost": 1, "unit": "entries", "cause": "sequence"}, (0, 3)),
        ("bronze_gaps", {"lost": None, "unit": "entries", "cause": "reset"}, (0, 3)),
        ("bronze_runs", {"worker": "w", "run": "r", "last_at": NOON, "is_ended": False}, (0, 3)),
    ],
    ids=["attempts given up", "a missing entry", "nobody knows", "a killed worker"],
)
def test_rows_that_are_missing_with_a_reason_may_be_explained(lake, table, row, verdict):
    append(lake, "silver_attempts", attempt("a"))
    append(lake, "gold_backlog", sample(0, 4, 4, None))
    append(lake, table, row)

    found = audited(lake)

    assert (found["missing_proven"], found["missing_maybe"]) == verdict


def test_a_server_that_does_not_count_leaves_it_open(lake):
    append(lake, "silver_attempts", attempt("a"))
    append(lake, "gold_backlog", sample(0, None, None, None))

    row = audited(lake)

    assert (row["server_finished"], row["missing_proven"], row["rows_finished"]) == (None, None, 1)


def test_a_counter_that_began_anew_leaves_it_open(lake):
    append(lake, "silver_attempts", attempt("a"))
    append(lake, "gold_backlog", sample(0, 9, 9, None), sample(60, 1, 1, None))

    assert audited(lake)["server_finished"] is None


def test_a_trimmed_entry_is_one_loss_though_two_rows_tell_of_it(lake):
    append(
        lake, "bronze_gaps",
        {"lost": 4, "unit": "entries", "cause": "trimmed"},
        {"lost": 4, "unit": "entries", "cause": "sequence"},
    )  # fmt: skip

    append(lake, "gold_backlog", sample(0, 0, 0, None))

    assert audited(lake)["entries_lost"] == 4


def test_the_run_of_a_worker_that_lives_has_no_open_end(lake):
    append(lake, "bronze_runs", {"worker": "w", "run": "r", "last_at": NOON, "is_ended": False})
    append(lake, "bronze_runs", {"worker": "v", "run": "q", "last_at": NOON, "is_ended": False})
    append(lake, "bronze_runs", {"worker": "v", "run": "q", "last_at": NOON, "is_ended": True})
    append(lake, "gold_backlog", sample(0, 0, 0, None))

    assert audited(lake)["open_runs"] == 1
    assert audited(lake, alive={"w"})["open_runs"] == 0


@pytest.mark.parametrize(
    ("ends", "two_ends", "after_dlq"),
    [
        ([attempt(), attempt("b")], 0, 0),
        ([attempt(), attempt(at_s=1)], 1, 0),
        ([attempt(outcome="dead"), attempt(at_s=1)], 0, 1),
        ([attempt(), attempt(outcome="dead", at_s=1)], 1, 0),
        ([attempt("", "rejected"), attempt("", "rejected")], 0, 0),
    ],
    ids=["two jobs", "completed twice", "replayed", "completed, then dead", "no jobs"],
)
def test_jobs_that_ended_twice_are_told_from_jobs_that_were_replayed(
    lake, ends, two_ends, after_dlq
):
    append(lake, "silver_attempts", *ends)
    append(lake, "gold_backlog", sample(0, 2, 2, None))

    row = audited(lake)

    assert (row["jobs_with_two_ends"], row["ends_after_dlq"]) == (two_ends, after_dlq)


def test_redeliveries_and_clocks_that_disagree_are_counted(lake):
    append(lake, "silver_attempts", attempt(), attempt("b", deliveries=2))
    told = {"started_at": NOON, "enqueued_at": NOON, "ready_at": NOON}
    early = NOON + timedelta(milliseconds=1)
    append(
        lake, "bronze_attempts",
        told, told | {"ready_at": early}, told | {"enqueued_at": NOON + timedelta(seconds=2)},
    )  # fmt: skip
    append(lake, "gold_backlog", sample(0, 2, 2, None))

    row = audited(lake)

    assert (row["redeliveries"], row["skewed_clocks"]) == (1, 1)


@pytest.mark.parametrize(
    ("gap", "proven", "maybe"),
    [([], 1, 0), ([{"lost": 5, "unit": "entries", "cause": "trimmed"}], 0, 1)],
    ids=["no gap", "in a gap"],
)
def test_events_know_of_starts_without_an_end(lake, gap, proven, maybe):
    append(lake, "bronze_events", {"event": "active"}, {"event": "active"}, {"event": "completed"})
    append(lake, "silver_attempts", attempt())
    append(lake, "gold_backlog", sample(0, 1, 1, None))
    append(lake, "bronze_gaps", *gap) if gap else None

    row = audited(lake, EVENTS)

    assert (row["starts_without_end_proven"], row["starts_without_end_maybe"]) == (proven, maybe)
    assert (row.get("open_runs"), row.get("stale")) == (None, None)


def test_what_still_runs_has_not_lost_its_end(lake):
    append(lake, "bronze_events", {"event": "active"}, {"event": "active"})
    append(lake, "silver_attempts", attempt())
    append(lake, "gold_backlog", sample(0, 2, 1, None, running=1, ready=0))

    assert audited(lake, EVENTS)["starts_without_end_proven"] == 0


def test_a_day_is_audited_again_in_the_place_of_the_last_time(lake):
    append(lake, "gold_backlog", sample(0, 0, 0, None))

    audit(lake, HISTORY, ())
    audit(lake, HISTORY, ())

    assert lake.table("gold_audit").count() == 1


def test_an_empty_lake_has_nothing_to_audit(lake):
    assert audit(lake, HISTORY, ()) == []
