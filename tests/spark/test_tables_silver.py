"""Attempts as rows of silver, without a JVM."""

from __future__ import annotations

from datetime import date, timedelta

import pyarrow as pa
import pytest

from chasquimq.spark.lake.ledger import RunPart
from chasquimq.spark.lake.tables import BRONZE_ATTEMPTS, SILVER_ATTEMPTS, SILVER_JOBS
from chasquimq.spark.pipeline.tables.bronze import bronze_attempts, bronze_events, bronze_runs
from chasquimq.spark.pipeline.tables.silver import active_parts, silver_rows, waiting_parts
from chasquimq.spark.schema import ATTEMPTS_ARROW, EVENTS_ARROW, MARK
from support.rows import DAY, NOON, after, attempt, batch, failure


def silver(*rows):
    return silver_rows(batch("bronze_attempts", *rows))


def test_bronze_leaves_markers_out_and_knows_the_day_of_the_entry():
    rows = [
        attempt(stream_id="1794787199999-0", row=0),
        attempt(stream_id="1794787200000-0", row=0),
        {"stream_id": "1794830400001-0", "row": -1, "outcome": MARK},
    ]
    source = [
        {name: row.get(name) for name in ATTEMPTS_ARROW.names} for row in rows
    ]  # fmt: skip

    bronze = bronze_attempts(pa.RecordBatch.from_pylist(source, ATTEMPTS_ARROW), 7, 0)

    assert bronze.schema == BRONZE_ATTEMPTS.arrow
    assert bronze.column("event_date").to_pylist() == [date(2026, 11, 15), date(2026, 11, 16)]
    assert bronze.column("batch_id").to_pylist() == [7, 7]


@pytest.mark.parametrize(
    ("id_ms", "day"),
    [(1_794_787_199_999, date(2026, 11, 15)), (1_794_787_200_000, date(2026, 11, 16))],
    ids=["the last millisecond", "the first"],
)
def test_events_are_of_the_day_that_their_entry_reached_the_server(id_ms, day):
    row = dict.fromkeys(EVENTS_ARROW.names) | {"event": "active", "id_ms": id_ms, "id_seq": 0}

    bronze = bronze_events(pa.RecordBatch.from_pylist([row], EVENTS_ARROW), 0, 0)

    assert bronze.column("event_date").to_pylist() == [day]


WILD_MS = [1_700_000_000_000_000, 2**62]
NOW_US = 1_794_830_400_000_000


@pytest.mark.parametrize("wild_ms", WILD_MS, ids=["microseconds", "no calendar"])
def test_what_has_a_wild_entry_id_is_of_the_day_it_was_read(wild_ms):
    event = dict.fromkeys(EVENTS_ARROW.names) | {"event": "active", "id_ms": wild_ms}
    row = attempt(stream_id=f"{wild_ms}-0", row=0)
    told = {name: row.get(name) for name in ATTEMPTS_ARROW.names}

    events = bronze_events(pa.RecordBatch.from_pylist([event], EVENTS_ARROW), 0, NOW_US)
    attempts = bronze_attempts(pa.RecordBatch.from_pylist([told], ATTEMPTS_ARROW), 0, NOW_US)

    assert events.column("event_date").to_pylist() == [DAY]
    assert attempts.column("event_date").to_pylist() == [DAY]


@pytest.mark.parametrize("wild_ms", WILD_MS, ids=["microseconds", "no calendar"])
def test_a_run_with_a_wild_entry_id_is_of_the_day_it_was_read(wild_ms):
    part = RunPart(
        queue="mail", worker="w", run="r", first_seq=1, last_seq=1, first_id=f"{wild_ms}-0",
        last_id=f"{wild_ms}-0",
    )  # fmt: skip

    (row,) = bronze_runs([part], 0, NOON).to_pylist()

    assert (row["last_at"], row["event_date"]) == (NOON, DAY)


def test_an_attempt_knows_its_end_and_its_wait():
    (row,) = silver(attempt()).attempts.to_pylist()

    assert row["ended_at"] == NOON + timedelta(microseconds=1_500)
    assert row["wait_ms"] == 20.0
    assert silver(attempt()).attempts.schema == SILVER_ATTEMPTS.arrow


def test_a_wait_is_never_below_zero_whatever_the_clocks_say():
    (row,) = silver(attempt(ready_at=after(5))).attempts.to_pylist()

    assert row["wait_ms"] == 0.0


def test_a_wait_that_nobody_knows_is_none():
    (row,) = silver(attempt(ready_at=None)).attempts.to_pylist()

    assert row["wait_ms"] is None


def test_a_job_that_completed_at_its_first_attempt_is_whole():
    rows = silver(attempt())

    (job,) = rows.jobs.to_pylist()
    assert rows.parts.num_rows == 0
    assert rows.jobs.schema == SILVER_JOBS.arrow
    assert (job["attempts"], job["failures"], job["status"]) == (1, 0, "completed")
    assert job["total_ms"] == 31.5


@pytest.mark.parametrize(
    ("row", "status", "failures", "is_ended"),
    [
        (failure(), "retrying", 1, False),
        (failure(outcome="dead", attempt=3), "dead", 1, True),
        (attempt(attempt=2), "completed", 0, True),
        (attempt(outcome="snoozed"), "retrying", 0, False),
        (attempt(outcome="stale", attempt=2), None, 0, False),
        (attempt(outcome="unproven"), None, 0, False),
        (attempt(outcome="rejected", attempt=0, started_at=None), "dead", 0, True),
        (attempt(outcome="outcome-17"), None, 0, False),
    ],
    ids=["retried", "dead", "second", "snoozed", "stale", "unproven", "rejected", "later version"],
)
def test_any_other_attempt_is_a_part_of_its_job(row, status, failures, is_ended):
    rows = silver(row)

    (part,) = rows.parts.to_pylist()
    assert rows.jobs.num_rows == 0
    assert (part["status"], part["failures"]) == (status, failures)
    assert (part["ended_at"] is not None) == is_ended


def test_what_never_ran_is_no_attempt_of_its_job():
    (part,) = silver(attempt(outcome="rejected", attempt=0, started_at=None)).parts.to_pylist()

    assert part["attempts"] == 0
    assert part["first_active_at"] is None
    assert part["updated_at"] == NOON - timedelta(milliseconds=20)


def test_an_entry_that_was_no_job_is_an_attempt_of_nobody():
    rows = silver(attempt(outcome="rejected", attempt=0, job_id=""))

    assert rows.attempts.num_rows == 1
    assert rows.parts.num_rows == rows.jobs.num_rows == 0


def event(kind: str, **columns):
    return {
        "queue": "mail", "event": kind, "job_id": "job-1", "ts": NOON, "batch_id": 3,
        "event_date": DAY,
    } | columns  # fmt: skip


def test_a_job_that_is_known_to_wait_is_a_part_that_is_older_than_any_start():
    (part,) = waiting_parts(batch("bronze_events", event("waiting"), event("active"))).to_pylist()

    assert (part["status"], part["attempts"]) == ("waiting", 0)
    assert part["updated_at"] < NOON


def test_a_start_that_is_still_open_says_that_its_job_runs():
    opened = batch("silver_open", event("active"), event("failed"), event("active", batch_id=2))

    (part,) = active_parts(opened, 3).to_pylist()

    assert (part["status"], part["first_active_at"]) == ("active", NOON)
    assert active_parts(opened, None).num_rows == 2


@pytest.mark.parametrize("job_id", ["", None], ids=["empty", "unknown"])
def test_what_waits_without_being_a_job_is_nobodys_part(job_id):
    assert waiting_parts(batch("bronze_events", event("waiting", job_id=job_id))).num_rows == 0
