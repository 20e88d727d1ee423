"""The audit of a lake, without a JVM: what is missing, what is odd, and what nobody can know."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.pipeline.audit.audit import audit
from chasquimq.spark.pipeline.audit.read_progress import TO_THE_TAIL, Standing
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


def standing(*alive: tuple[str, str], read_until: datetime | None = TO_THE_TAIL) -> Standing:
    return Standing(alive, {} if read_until is None else {"mail": read_until})


def audited(lake: Lake, channels=None, at: Standing | None = None) -> dict:
    (row,) = audit(lake, channels or HISTORY, at or standing())
    return row


def looked(lake: Lake, at: datetime, left: int, finished: int | None, **more) -> None:
    """A look at a queue in which nothing waits."""
    told = sample(0, left, left, finished, **more) | {"sampled_at": at}
    append(lake, "gold_backlog", told | {"event_date": at.date()})


def ended(lake: Lake, at: datetime, count: int, prefix: str = "j") -> None:
    """So many attempts that completed at that moment."""
    one = {"event_date": at.date(), "ended_at": at}
    append(lake, "silver_attempts", *(attempt(f"{prefix}{n}") | one for n in range(count)))


def verdict(row: dict) -> tuple:
    return row["server_finished"], row["rows_finished"], row["missing_proven"], row["missing_maybe"]


def test_what_had_left_before_the_first_look_counts_for_the_first_day(lake):
    append(lake, "silver_attempts", *(attempt(f"j{at}") for at in range(5)))
    append(lake, "gold_backlog", sample(0, 3, 3, None), sample(60, 5, 5, 2))

    row = audited(lake)

    assert (row["server_finished"], row["rows_finished"]) == (5, 5)
    assert (row["missing_proven"], row["missing_maybe"], row["surplus"]) == (0, 0, 0)
    assert row["is_settled"]


def test_later_days_count_what_left_on_them(lake):
    before = NOON - timedelta(days=1)
    looked(lake, before, 7, None)
    looked(lake, NOON, 9, 2)
    ended(lake, before, 7, "old")
    ended(lake, NOON, 2)

    first, second = audit(lake, HISTORY, standing())

    assert (first["server_finished"], first["rows_finished"]) == (7, 7)
    assert (second["server_finished"], second["rows_finished"]) == (2, 2)


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
    append(lake, "silver_attempts", attempt("a", at_s=1))
    append(lake, "gold_backlog", sample(0, 0, 0, None), sample(60, 4, 4, 4))

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
    append(lake, "silver_attempts", attempt("a", at_s=1))
    append(lake, "gold_backlog", sample(0, 0, 0, None), sample(60, 4, 4, 4))
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
    assert audited(lake, at=standing(("mail", "w")))["open_runs"] == 0


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

    audit(lake, HISTORY, standing())
    audit(lake, HISTORY, standing())

    assert lake.table("gold_audit").count() == 1


def test_an_empty_lake_has_nothing_to_audit(lake):
    assert audit(lake, HISTORY, standing()) == []


def test_a_weekend_without_looks_is_judged_with_the_day_after_it(lake):
    friday, monday = NOON - timedelta(days=4), NOON - timedelta(days=1)
    looked(lake, friday, 10, None)
    ended(lake, friday - timedelta(hours=1), 10, "fri")
    for day in (1, 2):
        ended(lake, friday + timedelta(days=day), 20, f"free{day}-")
    ended(lake, monday - timedelta(hours=1), 10, "mon")
    looked(lake, monday, 60, 50)

    rows = {row["event_date"]: row for row in audit(lake, HISTORY, standing())}

    assert verdict(rows[friday.date()]) == (10, 10, 0, 0)
    assert verdict(rows[monday.date()]) == (50, 50, 0, 0)


def test_a_look_once_a_day_counts_rows_from_look_to_look(lake):
    # Looks at noon; a hundred a day, then twenty.
    days = [NOON - timedelta(days=ago) for ago in (3, 2, 1)]
    looked(lake, days[0], 50, None)
    ended(lake, days[0] - timedelta(hours=6), 50, "a")
    ended(lake, days[0] + timedelta(hours=6), 50, "b")
    ended(lake, days[1] - timedelta(hours=6), 50, "c")
    looked(lake, days[1], 150, 100)
    ended(lake, days[1] + timedelta(hours=6), 10, "d")
    ended(lake, days[2] - timedelta(hours=6), 10, "e")
    looked(lake, days[2], 170, 20)
    ended(lake, days[2] + timedelta(hours=6), 10, "f")

    found = [verdict(row) for row in audit(lake, HISTORY, standing())]

    assert found == [(100, 100, 0, 0), (20, 20, 0, 0)]


def test_what_is_missing_between_two_looks_is_proven_however_far_apart_they_are(lake):
    looked(lake, NOON - timedelta(days=3), 0, None)
    ended(lake, NOON - timedelta(days=2), 7)
    looked(lake, NOON, 10, 10)

    assert verdict(audit(lake, HISTORY, standing())[-1]) == (10, 7, 3, 0)


def test_an_attempt_that_ends_while_it_is_looked_at_is_missing_on_neither_day(lake):
    before = NOON - timedelta(days=1)
    looked(lake, before - timedelta(days=1), 0, None)
    # It had ended, but had not left.
    ended(lake, before - timedelta(milliseconds=1), 1)
    looked(lake, before, 0, 0)
    looked(lake, NOON, 1, 1)

    found = [verdict(row)[2:] for row in audit(lake, HISTORY, standing())]

    assert found == [(0, 0), (0, 0)]


def test_what_left_before_the_first_look_may_be_older_than_the_history(lake):
    append(lake, "silver_attempts", attempt("a", at_s=-1), attempt("b", at_s=1))
    append(lake, "gold_backlog", sample(0, 1_000, 1_000, None), sample(60, 1_003, 1_003, 3))

    assert verdict(audited(lake)) == (1_003, 2, 2, 999)


@pytest.mark.parametrize(
    "read_until", [None, NOON + timedelta(seconds=1)], ids=["nobody knows", "behind"]
)
def test_a_day_is_not_settled_before_its_channel_was_read_to_its_end(lake, read_until):
    append(lake, "gold_backlog", sample(0, 0, 0, None), sample(60, 4, 4, 4))

    row = audited(lake, at=standing(read_until=read_until))

    assert (row["is_settled"], row["missing_proven"], row["missing_maybe"]) == (False, 0, 4)


def test_a_day_that_was_read_to_its_end_is_settled_while_later_ones_are_read(lake):
    append(lake, "gold_backlog", sample(0, 0, 0, None), sample(60, 4, 4, 4))

    row = audited(lake, at=standing(read_until=NOON + timedelta(seconds=90)))

    assert (row["is_settled"], row["missing_proven"]) == (True, 4)


def run(run: str, first_s: float, last_s: float, *, worker: str = "w", ended: bool = False) -> dict:
    return {
        "worker": worker, "run": run, "is_ended": ended,
        "first_at": NOON + timedelta(seconds=first_s), "last_at": NOON + timedelta(seconds=last_s),
    }  # fmt: skip


def test_a_worker_that_comes_back_under_its_name_does_not_hide_its_end(lake):
    append(lake, "gold_backlog", sample(0, 0, 0, None), sample(60, 3, 3, 3))
    append(lake, "bronze_runs", run("old", 1, 5), run("new", 20, 50))

    row = audited(lake, at=standing(("mail", "w")))

    assert (row["open_runs"], row["missing_proven"], row["missing_maybe"]) == (1, 0, 3)


def test_a_worker_of_another_queue_does_not_keep_one_of_its_name_alive(lake):
    append(lake, "gold_backlog", sample(0, 0, 0, None))
    append(lake, "bronze_runs", run("r", 1, 5))

    assert audited(lake, at=standing(("other", "w")))["open_runs"] == 1


def test_a_worker_that_fell_silent_may_have_been_killed_days_later(lake):
    before = NOON - timedelta(days=2)
    looked(lake, before, 0, None)
    append(lake, "bronze_runs", run("r", -86_400 * 2, -86_400 * 2))
    looked(lake, NOON, 3, 3)

    last = audit(lake, HISTORY, standing())[-1]

    assert (last["open_runs"], last["missing_proven"], last["missing_maybe"]) == (0, 0, 3)


def test_whoever_was_found_dead_explains_nothing_that_came_after(lake):
    looked(lake, NOON - timedelta(days=2), 0, None)
    append(lake, "bronze_runs", run("r", -86_400 * 2, -86_400 * 2))
    found = lake.path / "_pipeline" / "found-dead.json"
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_text(json.dumps({"mail r": (NOON - timedelta(days=1)).isoformat()}))
    looked(lake, NOON - timedelta(hours=20), 0, 0)
    looked(lake, NOON, 3, 3)

    assert audit(lake, HISTORY, standing())[-1]["missing_proven"] == 3


def test_a_job_that_runs_over_midnight_has_not_lost_its_end(lake):
    before = NOON - timedelta(days=1)
    looked(lake, before, 0, None)
    append(lake, "bronze_events", {"event": "active", "ts": before + timedelta(hours=11),
                                   "event_date": before.date()})  # fmt: skip
    append(lake, "bronze_events", {"event": "active", "ts": NOON})
    ended(lake, NOON - timedelta(hours=11), 1, "night")
    ended(lake, NOON, 1, "day")
    looked(lake, NOON + timedelta(minutes=1), 2, 2)

    found = [row["starts_without_end_proven"] for row in audit(lake, EVENTS, standing())]

    assert found == [0, 0]


def test_rows_of_a_worker_whose_clock_is_ahead_are_not_missing_for_certain(lake):
    append(lake, "gold_backlog", sample(0, 0, 0, None), sample(60, 3, 3, 3))
    ended(lake, NOON + timedelta(minutes=5), 3)

    assert verdict(audited(lake)) == (3, 0, 0, 3)


def test_an_audit_of_other_queues_finds_nobody_dead_in_this_one(lake):
    looked(lake, NOON, 0, None)
    append(lake, "bronze_runs", run("r", 1, 5))

    audit(lake, {"other": "history"}, standing())

    assert not (lake.path / "_pipeline" / "found-dead.json").exists()


def test_an_audit_of_other_queues_forgets_nobody_who_was_found_dead(lake):
    looked(lake, NOON, 0, None)
    append(lake, "bronze_runs", run("r", 1, 5))
    audit(lake, HISTORY, standing())
    append(lake, "bronze_runs", run("q", 1, 5) | {"queue": "other"})

    audit(lake, {"other": "history"}, standing())

    found = json.loads((lake.path / "_pipeline" / "found-dead.json").read_text())
    assert set(found) == {"mail r", "other q"}


def test_an_audit_of_other_queues_leaves_the_rows_of_this_one(lake):
    looked(lake, NOON, 0, None)
    audit(lake, HISTORY, standing())

    audit(lake, {"other": "history"}, standing())

    assert lake.table("gold_audit").count() == 1
