"""Events folded into attempts: ours, the original's, and those whose end comes later."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from chasquimq.spark.lake.files import one_batch
from chasquimq.spark.lake.tables import FOLDED_ATTEMPTS
from chasquimq.spark.pipeline.channel_tables import still_hoped_for
from chasquimq.spark.pipeline.tables.bronze import bronze_events
from chasquimq.spark.pipeline.tables.events import Folded, fold_events, rejected_entries
from chasquimq.spark.sources.events import event_batch
from support.rows import DAY, after, batch
from wire.vectors import load


def told(*events) -> pa.RecordBatch:
    """Events in the order of the stream."""
    rows = [
        {"queue": "mail", "id_ms": 1_000 + at, "id_seq": 0, "stream_id": f"{1_000 + at}-0",
         "job_id": "job-1", "event_date": DAY, "batch_id": 0, **event}
        for at, event in enumerate(events)
    ]  # fmt: skip
    return batch("bronze_events", *rows)


def fold(*events) -> Folded:
    return fold_events(told(*events), is_all=True)


def active(seconds: float = 0, attempt: int = 1, **more):
    return {"event": "active", "ts": after(seconds), "attempt": attempt} | more


def completed(seconds: float = 1, attempt: int = 1, **more):
    fields = {
        "event": "completed",
        "ts": after(seconds),
        "attempt": attempt,
        "duration_us": 900_000,
    }
    return fields | more


def failed(seconds: float = 1, attempt: int = 1, **more):
    fields = {"event": "failed", "ts": after(seconds), "attempt": attempt, "duration_us": 900_000,
            "reason": "no route", "fingerprint": "f1"}  # fmt: skip
    return fields | more


def retry(seconds: float = 1, attempt: int = 2, **more):
    fields = {
        "event": "retry-scheduled",
        "ts": after(seconds),
        "attempt": attempt,
        "backoff_ms": 50,
    }
    return fields | more


def buried(seconds: float = 1, attempt: int = 1, reason: str = "retries_exhausted", **more):
    return {"event": "dlq", "ts": after(seconds), "attempt": attempt, "reason": reason} | more


def attempts(folded: Folded) -> list[dict]:
    rows = folded.attempts.to_pylist()
    return sorted(rows, key=lambda row: (row["attempt"], row["outcome"]))


def kinds(events: pa.RecordBatch) -> list[str]:
    return sorted(events.column("event").to_pylist())


def test_a_start_and_its_end_are_one_attempt():
    folded = fold(active(worker="w1", name="send"), completed())

    (row,) = attempts(folded)
    assert folded.attempts.schema == FOLDED_ATTEMPTS.arrow
    assert (row["outcome"], row["attempt"], row["worker"], row["name"]) == (
        "completed", 1, "w1", "send",
    )  # fmt: skip
    assert (row["started_at"], row["duration_us"]) == (after(0), 900_000)
    assert kinds(folded.opened) == []


def test_without_a_start_the_end_tells_when_it_was():
    (row,) = attempts(fold(completed()))

    assert row["started_at"] == after(1) - timedelta(microseconds=900_000)


def test_a_start_of_another_run_is_not_taken_for_the_one_that_was_lost():
    (row,) = attempts(fold(active(), completed(9, 2)))

    assert row["started_at"] == after(9) - timedelta(microseconds=900_000)


def test_a_failure_that_is_tried_again_is_one_attempt():
    first, second = attempts(fold(active(), failed(), retry(), active(2, 2), completed(3, 2)))

    assert (first["outcome"], first["attempt"], first["backoff_ms"]) == ("retried", 1, 50)
    assert (first["error"], first["fingerprint"]) == ("no route", "f1")
    assert (second["outcome"], second["attempt"], second["error"]) == ("completed", 2, None)


def test_a_failure_that_is_buried_is_dead_and_keeps_its_error():
    (row,) = attempts(fold(active(), failed(attempt=3), buried(attempt=3)))

    assert (row["outcome"], row["attempt"], row["error"]) == ("dead", 3, "no route")


def test_what_is_buried_without_a_failure_never_ran():
    (row,) = attempts(fold(active(), buried(reason="crash_loop")))

    assert (row["outcome"], row["attempt"], row["started_at"]) == ("rejected", 0, None)
    assert row["error"] == "crash_loop"


def test_a_handler_that_asks_to_come_back_is_snoozed():
    first, second = attempts(fold(active(), retry(attempt=1), active(2), completed(3)))

    assert (first["outcome"], second["outcome"]) == ("completed", "snoozed")
    assert (first["attempt"], second["attempt"]) == (1, 1)
    assert second["duration_us"] == 1_000_000


def test_two_ends_of_a_job_are_two_rows():
    rows = attempts(fold(active(), completed(), completed(2)))

    assert [row["outcome"] for row in rows] == ["completed", "completed"]


def test_jobs_of_one_id_in_two_queues_are_two_jobs():
    rows = attempts(fold(active(), active(queue="other"), completed(), completed(queue="other")))

    assert sorted(row["queue"] for row in rows) == ["mail", "other"]
    assert [row["started_at"] for row in rows] == [after(0), after(0)]


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([active()], ["active"]),
        ([active(), failed()], ["active", "failed"]),
        ([failed()], ["failed"]),
        ([active(), active(5)], ["active"]),
        ([active(), completed(), active(5, 2)], ["active"]),
        ([active(), completed()], []),
        ([], []),
    ],
    ids=["started", "failing", "start unknown", "started twice", "again", "done", "nothing"],
)
def test_what_has_no_end_yet_stays_open(events, kept):
    assert kinds(fold(*events).opened) == kept


@pytest.mark.parametrize(
    ("events", "loose"),
    [
        ([completed()], ["completed"]),
        ([failed(), retry()], ["failed", "retry-scheduled"]),
        ([retry()], ["retry-scheduled"]),
        ([buried()], ["dlq"]),
        ([failed(), retry(), active(2, 2), completed(3, 2)], ["failed", "retry-scheduled"]),
        ([active(), completed()], []),
    ],
    ids=["completed", "failed", "retry", "buried", "then again", "whole"],
)
def test_an_end_whose_beginning_may_be_elsewhere_is_loose(events, loose):
    folded = fold_events(told(*events), is_all=False)

    assert kinds(folded.loose) == loose


LIVES = [
    [active(), completed()],
    [active(), failed(), retry(), active(2, 2), completed(3, 2)],
    [active(), failed(), retry(), active(2, 2), failed(3, 2), buried(3, 2)],
    [active(), retry(attempt=1), active(2), completed(3)],
    [active(), active(5, 2), completed(6, 2)],
    [buried(reason="expired")],
    [active(), buried(reason="crash_loop")],
]


@pytest.mark.parametrize("seed", range(12))
def test_folding_in_pieces_comes_to_the_same_as_folding_at_once(seed):
    rng = random.Random(seed)
    lives = [[event | {"job_id": f"job-{at}"} for event in rng.choice(LIVES)] for at in range(30)]
    events = told(*_interleaved(rng, lives))
    whole = fold_events(events, is_all=True)

    in_pieces = _fold_in_pieces(rng, events)

    assert _comparable(in_pieces) == _comparable(whole.attempts)


def _interleaved(rng: random.Random, lives: list[list[dict]]) -> list[dict]:
    waiting, told_so_far = [list(life) for life in lives], []
    while any(waiting):
        told_so_far.append(rng.choice([life for life in waiting if life]).pop(0))
    return told_so_far


def _fold_in_pieces(rng: random.Random, events: pa.RecordBatch) -> pa.RecordBatch:
    """As tasks and batches do: each piece alone, what is left of it with what was open before."""
    cuts = sorted(rng.sample(range(1, events.num_rows), 5))
    found, opened = [], None
    for low, high in zip([0, *cuts], [*cuts, events.num_rows], strict=True):
        piece = fold_events(events.slice(low, high - low), is_all=False)
        rest = [piece.opened, piece.loose] + ([] if opened is None else [opened])
        later = fold_events(one_batch(pa.Table.from_batches(rest)), is_all=True)
        found += [piece.attempts, later.attempts]
        opened = later.opened
    return one_batch(pa.Table.from_batches(found))


def _comparable(rows: pa.RecordBatch) -> list[tuple]:
    names = ("job_id", "attempt", "outcome", "started_at", "duration_us", "error", "backoff_ms")
    return sorted(tuple(map(str, (row[name] for name in names))) for row in rows.to_pylist())


def test_what_stayed_open_goes_on_in_the_next_batch():
    before = fold(active(worker="w1"), failed()).opened
    later = told(retry(id_ms=1_500)).select(before.schema.names)

    (row,) = attempts(fold_events(one_batch(pa.Table.from_batches([before, later])), is_all=True))

    assert (row["outcome"], row["started_at"], row["error"]) == ("retried", after(0), "no route")
    assert row["duration_us"] == 900_000


def test_an_entry_that_could_not_be_read_is_nobodys_attempt():
    events = told(buried(reason="malformed", job_id=""), buried(reason="x", job_id="job-2"))

    (row,) = rejected_entries(events).to_pylist()

    assert (row["job_id"], row["outcome"], row["error"]) == ("", "rejected", "malformed")
    assert rejected_entries(events).schema == FOLDED_ATTEMPTS.arrow


def test_an_id_that_tells_its_time_tells_when_the_job_was_added():
    (row,) = attempts(fold(completed(job_id="01M7F1028TYZ4DXTDCBVPTF282")))
    (other,) = attempts(fold(completed(job_id="order-7")))

    assert row["enqueued_at"] == datetime(2026, 11, 15, 7, 15, 55, 290_000, tzinfo=UTC)
    assert other["enqueued_at"] is None


def test_an_end_without_start_and_run_time_is_of_the_moment_it_was_told():
    (row,) = attempts(fold(completed(duration_us=None)))

    assert row["started_at"] == after(1)


def test_an_id_that_tells_a_time_of_no_calendar_tells_nothing():
    (row,) = attempts(fold(completed(job_id="7ZZZZZZZZZ" + "0" * 16)))

    assert row["enqueued_at"] is None


def test_the_events_of_the_original_become_its_attempts():
    lines = load("events")["events_clean_run"]["events"]
    entries = [
        (f"{1_000 + at}-0".encode(), [part.encode() for pair in one["fields"] for part in pair])
        for at, one in enumerate(lines)
    ]
    source = event_batch("orig", entries, with_extra=True)

    folded = fold_events(bronze_events(source, 0, 0), is_all=True)

    assert sorted((row["name"], row["attempt"], row["outcome"]) for row in attempts(folded)) == [
        ("", 1, "completed"), ("dl", 1, "completed"), ("fl", 1, "retried"),
        ("fl", 2, "completed"), ("named", 1, "completed"),
    ]  # fmt: skip
    assert kinds(folded.opened) == []


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("newest_ms", "kept"),
    [(8 * DAY_MS, [2 * DAY_MS]), (3 * DAY_MS, [1, 2 * DAY_MS]), (None, [1, 2 * DAY_MS])],
    ids=["a week later", "two days later", "nothing came"],
)
def test_a_start_is_given_up_when_the_stream_has_gone_on_for_a_week(newest_ms, kept):
    opened = batch("silver_open", *({"event": "active", "id_ms": ms} for ms in (1, 2 * DAY_MS)))

    assert still_hoped_for(opened, newest_ms).column("id_ms").to_pylist() == kept


@pytest.mark.parametrize("wild_ms", [1_700_000_000_000_000, 2**62])
def test_a_wild_entry_id_gives_no_start_up(wild_ms):
    now_ms = time.time_ns() // 1_000_000
    opened = batch("silver_open", *({"event": "active", "id_ms": ms} for ms in (now_ms, wild_ms)))

    assert still_hoped_for(opened, wild_ms).num_rows == 2
