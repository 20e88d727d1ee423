"""Events folded into attempts: ours, the original's, and those whose end comes later."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from chasquimq.spark.events_arrow import event_batch
from chasquimq.spark.table_schemas import FOLDED_ATTEMPTS
from chasquimq.spark.tables_bronze import bronze_events
from chasquimq.spark.tables_events import fold, rejected_entries
from support.rows import DAY, after, batch
from wire.vectors import load


@pytest.fixture
def frame(spark):
    """Events in the order of the stream."""

    def make(*events):
        rows = [
            {"queue": "mail", "id_ms": 1_000 + at, "id_seq": 0, "stream_id": f"{1_000 + at}-0",
             "job_id": "job-1", "event_date": DAY, "batch_id": 0, **event}
            for at, event in enumerate(events)
        ]  # fmt: skip
        return spark.createDataFrame(pa.Table.from_batches([batch("bronze_events", *rows)]))

    return make


def active(seconds: float = 0, attempt: int = 1, **more):
    return {"event": "active", "ts": after(seconds), "attempt": attempt} | more


def completed(seconds: float = 1, attempt: int = 1, **more):
    told = {"event": "completed", "ts": after(seconds), "attempt": attempt, "duration_us": 900_000}
    return told | more


def failed(seconds: float = 1, attempt: int = 1, **more):
    told = {"event": "failed", "ts": after(seconds), "attempt": attempt, "duration_us": 900_000,
            "reason": "no route", "fingerprint": "f1"}  # fmt: skip
    return told | more


def retry(seconds: float = 1, attempt: int = 2, **more):
    told = {"event": "retry-scheduled", "ts": after(seconds), "attempt": attempt, "backoff_ms": 50}
    return told | more


def buried(seconds: float = 1, attempt: int = 1, reason: str = "retries_exhausted", **more):
    return {"event": "dlq", "ts": after(seconds), "attempt": attempt, "reason": reason} | more


def attempts(folded) -> list[dict]:
    rows = folded.where("outcome is not null").toArrow().to_pylist()
    return sorted(rows, key=lambda row: (row["attempt"], row["outcome"]))


def opened(folded) -> list[str]:
    rows = folded.where("opened is not null").select("opened.*").toArrow().to_pylist()
    return sorted(row["event"] for row in rows)


def test_a_start_and_its_end_are_one_attempt(frame):
    folded = fold(frame(active(worker="w1", name="send"), completed()))

    (row,) = attempts(folded)
    assert folded.columns == [*FOLDED_ATTEMPTS.names, "opened"]
    assert (row["outcome"], row["attempt"], row["worker"], row["name"]) == (
        "completed", 1, "w1", "send",
    )  # fmt: skip
    assert (row["started_at"], row["duration_us"]) == (after(0), 900_000)
    assert opened(folded) == []


def test_without_a_start_the_end_tells_when_it_was(frame):
    (row,) = attempts(fold(frame(completed())))

    assert row["started_at"] == after(1) - timedelta(microseconds=900_000)


def test_a_failure_that_is_tried_again_is_one_attempt(frame):
    first, second = attempts(
        fold(frame(active(), failed(), retry(), active(2, 2), completed(3, 2)))
    )

    assert (first["outcome"], first["attempt"], first["backoff_ms"]) == ("retried", 1, 50)
    assert (first["error"], first["fingerprint"]) == ("no route", "f1")
    assert (second["outcome"], second["attempt"], second["error"]) == ("completed", 2, None)


def test_a_failure_that_is_buried_is_dead_and_keeps_its_error(frame):
    (row,) = attempts(fold(frame(active(), failed(attempt=3), buried(attempt=3))))

    assert (row["outcome"], row["attempt"], row["error"]) == ("dead", 3, "no route")


def test_what_is_buried_without_a_failure_never_ran(frame):
    (row,) = attempts(fold(frame(active(), buried(reason="crash_loop"))))

    assert (row["outcome"], row["attempt"], row["started_at"]) == ("rejected", 0, None)
    assert row["error"] == "crash_loop"


def test_a_handler_that_asks_to_come_back_is_snoozed(frame):
    first, second = attempts(fold(frame(active(), retry(attempt=1), active(2), completed(3))))

    assert (first["outcome"], second["outcome"]) == ("completed", "snoozed")
    assert (first["attempt"], second["attempt"]) == (1, 1)
    assert second["duration_us"] == 1_000_000


def test_two_ends_of_a_job_are_two_rows(frame):
    rows = attempts(fold(frame(active(), completed(), completed(2))))

    assert [row["outcome"] for row in rows] == ["completed", "completed"]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ([active()], ["active"]),
        ([active(), failed()], ["active", "failed"]),
        ([failed()], ["failed"]),
        ([active(), active(5)], ["active"]),
        ([active(), completed(), active(5, 2)], ["active"]),
        ([active(), completed()], []),
    ],
    ids=["started", "failing", "start unknown", "started twice", "again", "done"],
)
def test_what_has_no_end_yet_stays_open(frame, told, kept):
    assert opened(fold(frame(*told))) == kept


def test_what_stayed_open_goes_on_in_the_next_batch(frame):
    first = fold(frame(active(worker="w1"), failed()))
    before = first.where("opened is not null").select("opened.*")
    later = frame(retry(id_ms=1_500))

    (row,) = attempts(fold(later.unionByName(before)))

    assert (row["outcome"], row["started_at"], row["error"]) == ("retried", after(0), "no route")
    assert row["duration_us"] == 900_000


def test_an_entry_that_could_not_be_read_is_nobodys_attempt(frame):
    events = frame(buried(reason="malformed", job_id=""), buried(reason="x", job_id="job-2"))

    (row,) = rejected_entries(events).toArrow().to_pylist()

    assert (row["job_id"], row["outcome"], row["error"]) == ("", "rejected", "malformed")
    assert rejected_entries(events).columns == FOLDED_ATTEMPTS.names


def test_an_id_that_tells_its_time_tells_when_the_job_was_added(frame):
    (row,) = attempts(fold(frame(completed(job_id="01M7F1028TYZ4DXTDCBVPTF282"))))
    (other,) = attempts(fold(frame(completed(job_id="order-7"))))

    assert row["enqueued_at"] == datetime(2026, 11, 15, 7, 15, 55, 290_000, tzinfo=UTC)
    assert other["enqueued_at"] is None


def test_the_events_of_the_original_become_its_attempts(spark):
    told = load("events")["events_clean_run"]["events"]
    entries = [
        (f"{1_000 + at}-0".encode(), [part.encode() for pair in one["fields"] for part in pair])
        for at, one in enumerate(told)
    ]
    source = event_batch("orig", entries, with_extra=True)
    events = spark.createDataFrame(pa.Table.from_batches([bronze_events(source, 0, 0)]))

    rows = attempts(fold(events))

    assert sorted((row["name"], row["attempt"], row["outcome"]) for row in rows) == [
        ("", 1, "completed"), ("dl", 1, "completed"), ("fl", 1, "retried"),
        ("fl", 2, "completed"), ("named", 1, "completed"),
    ]  # fmt: skip
    assert opened(fold(events)) == []
