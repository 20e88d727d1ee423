"""Entries of the history as Arrow: every column, and what cannot be read is marked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chasquimq.spark.columns import CENTURY_US, LAST_MS
from chasquimq.spark.schema import ATTEMPTS_ARROW
from chasquimq.spark.sources.history import attempt_batches, gap_batch
from chasquimq.wire.history import decode_history
from chasquimq.wire.history_writer import encode_history
from support.attempts import BASE_MS, attempts, block_of, entry, failed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(*entries: list[bytes]) -> list[dict]:
    raw = [(f"{at + 1}-0".encode(), fields) for at, fields in enumerate(entries)]
    batches = list(attempt_batches("emails", raw))
    assert all(batch.schema == ATTEMPTS_ARROW for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def packed(rows, **options) -> list[bytes]:
    return encode_history(block_of(rows), **({"worker": "w", "run": "r", "seq": 3} | options))


def moment(ms: float) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def replaced(fields: list[bytes], name: bytes, value: bytes) -> list[bytes]:
    at = fields.index(name)
    return [*fields[: at + 1], value, *fields[at + 2 :]]


def test_a_row_has_everything_the_entry_says():
    rows = attempts(1, outcomes=1, due_ms=BASE_MS - 25, backoffs_ms=700, failures=failed())

    (row,) = rows_of(packed(rows, lost=4, is_last=True))

    assert row == {
        "queue": "emails", "stream_id": "1-0", "worker": "w", "run": "r", "seq": 3, "row": 0,
        "job_id": "job-0", "name": "mail", "attempt": 1, "outcome": "retried",
        "enqueued_at": moment(BASE_MS - 30), "ready_at": moment(BASE_MS - 20),
        "due_at": moment(BASE_MS - 25), "started_at": moment(BASE_MS + 0.005),
        "duration_us": 1_500, "deliveries": 1, "backoff_ms": 700, "error_class": "OSError",
        "error": "no route", "fingerprint": failed().fingerprint,
        "entry_rows": 1, "lost": 4, "is_last": True,
    }  # fmt: skip


def test_only_the_first_row_of_an_entry_speaks_for_the_entry():
    rows = rows_of(packed(attempts(3), lost=4), packed(attempts(2), seq=4))

    assert [row["row"] for row in rows] == [0, 1, 2, 0, 1]
    assert [row["entry_rows"] for row in rows] == [3, None, None, 2, None]
    assert [row["lost"] for row in rows] == [4, None, None, 0, None]
    assert [row["is_last"] for row in rows] == [False, None, None, False, None]


def test_names_and_errors_come_from_the_dictionary_of_their_own_entry():
    one, two = attempts(2, names="mail"), attempts(2, names="sms", prefix="b")
    one.failures, two.failures = [None, failed("one")], [failed("two"), None]

    rows = rows_of(packed(one), packed(two))

    assert [row["name"] for row in rows] == ["mail", "mail", "sms", "sms"]
    assert [row["error"] for row in rows] == [None, "one", "two", None]


@settings(deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=5))
def test_rows_are_those_that_the_wire_reads(sizes):
    entries = [entry(size, seq=at) for at, size in enumerate(sizes)]
    expected = [row.job_id for fields in entries for row in decode_history(fields).rows()]

    rows = rows_of(*entries)

    assert [row["job_id"] for row in rows if row["row"] >= 0] == expected
    assert sum(row["row"] <= 0 for row in rows) == len(sizes)


@pytest.mark.parametrize(
    ("number", "label"), [(0, "completed"), (2, "dead"), (6, "unproven"), (7, "outcome-7"), (999, "outcome-999")]
)  # fmt: skip
def test_outcomes_have_words_and_later_ones_their_number(number, label):
    (row,) = rows_of(packed(attempts(1, outcomes=number)))

    assert row["outcome"] == label


def test_many_names_and_large_numbers_are_read_too():
    rows = attempts(600, attempts=70_000, deliveries=300)
    rows.names = [f"name-{at}" for at in range(600)]

    read = rows_of(packed(rows))

    assert [row["name"] for row in read] == rows.names
    assert (read[0]["attempt"], read[0]["deliveries"]) == (70_000, 300)


def test_an_attempt_that_never_started_has_no_start():
    (row,) = rows_of(packed(attempts(1, started_us=None, enqueued_ms=None)))

    assert (row["started_at"], row["enqueued_at"]) == (None, None)
    assert row["ready_at"] == moment(BASE_MS - 20)


@pytest.mark.parametrize("wild_ms", [2**64 - 1, 2**62, 253_402_300_800_000])
def test_a_time_that_no_calendar_holds_is_unknown(wild_ms):
    rows = attempts(2)
    rows.enqueued_ms = [wild_ms, BASE_MS]

    wild, sane = rows_of(packed(rows))

    assert (wild["enqueued_at"], sane["enqueued_at"]) == (None, moment(BASE_MS))
    assert wild["started_at"] == sane["started_at"]


def test_the_end_of_a_run_without_rows_is_a_mark():
    (row,) = rows_of(packed(attempts(0), lost=7, is_last=True))

    assert (row["row"], row["outcome"], row["job_id"], row["error"]) == (-1, "mark", None, None)
    assert (row["worker"], row["run"], row["seq"]) == ("w", "r", 3)
    assert (row["entry_rows"], row["lost"], row["is_last"]) == (0, 7, True)


def test_a_later_version_is_marked_as_unreadable_with_its_place_in_the_run():
    (row,) = rows_of(replaced(packed(attempts(2)), b"v", b"2"))

    assert (row["row"], row["outcome"], row["seq"], row["entry_rows"]) == (-1, "unreadable", 3, 2)
    assert row["error"] == "version 2 of 'attempts' is not known here"


def test_broken_columns_are_marked_as_unreadable_with_their_place_in_the_run():
    (row,) = rows_of(replaced(packed(attempts(2), lost=1), b"b", b"\xc1"))

    assert (row["outcome"], row["run"], row["seq"], row["lost"]) == ("unreadable", "r", 3, 1)
    assert "must be readable" in row["error"]


def test_a_foreign_entry_is_marked_as_unreadable():
    (row,) = rows_of([b"hello", b"world", b"w", b"\xff"])

    assert (row["row"], row["outcome"], row["job_id"], row["run"]) == (-1, "unreadable", None, None)
    assert (row["worker"], row["lost"], row["is_last"]) == ("\ufffd", 0, False)


def test_a_number_beyond_its_column_marks_its_own_entry_only():
    rows = rows_of(entry(2), packed(attempts(2, attempts=2**40), seq=9), entry(2, seq=2))

    assert [row["seq"] for row in rows] == [0, 0, 9, 2, 2]
    assert [row["outcome"] for row in rows][2] == "unreadable"


@pytest.mark.parametrize(
    "wild",
    [
        {"durations_us": 2**63 - 1}, {"durations_us": 2**52}, {"durations_us": -(2**62)},
        {"backoffs_ms": 2**60}, {"backoffs_ms": 2**42},
    ],
    ids=["the largest", "142 years", "negative", "a long wait", "139 years"],
)  # fmt: skip
def test_a_time_of_more_than_a_century_marks_its_own_entry_only(wild):
    rows = rows_of(entry(2), packed(attempts(2, **wild), seq=9), entry(2, seq=2))

    assert [row["seq"] for row in rows] == [0, 0, 9, 2, 2]
    assert rows[2]["outcome"] == "unreadable"
    assert "century" in rows[2]["error"]


def test_what_ends_a_century_after_the_last_start_is_still_in_the_calendar():
    last_us = LAST_MS * 1_000
    (row,) = rows_of(packed(attempts(1, started_us=last_us, durations_us=CENTURY_US)))

    assert row["started_at"] + 2 * timedelta(microseconds=row["duration_us"]) < datetime.max.replace(tzinfo=UTC)  # fmt: skip


def test_a_huge_sequence_number_is_marked_too():
    (row,) = rows_of(replaced(packed(attempts(1)), b"s", b"9" * 20))

    assert (row["outcome"], row["seq"]) == ("unreadable", None)


def test_columns_of_later_versions_are_let_be():
    fields = packed(attempts(1))
    columns = msgspec.msgpack.decode(fields[fields.index(b"b") + 1])

    (row,) = rows_of(replaced(fields, b"b", msgspec.msgpack.encode([*columns, ["new"]])))

    assert row["job_id"] == "job-0"


def test_no_entries_are_no_batches():
    assert list(attempt_batches("emails", [])) == []


def test_a_gap_says_where_how_much_and_why():
    (row,) = gap_batch("emails", "5-0", 12, "trimmed", "12 entries were trimmed").to_pylist()

    told = {column: value for column, value in row.items() if value is not None}
    assert told == {
        "queue": "emails", "stream_id": "5-0", "row": -1, "outcome": "gap", "lost": 12,
        "error_class": "trimmed", "error": "12 entries were trimmed",
    }  # fmt: skip


def test_times_are_of_the_kind_that_spark_takes():
    assert ATTEMPTS_ARROW.field("started_at").type == pa.timestamp("us", tz="UTC")
