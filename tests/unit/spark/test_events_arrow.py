"""Events of any writer as Arrow: every column, and what cannot be read is marked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from chasquimq.spark.schema import EVENTS_ARROW
from chasquimq.spark.sources.events import event_batch, gap_batch
from chasquimq.wire.events import Event, encode_event
from wire.vectors import load

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TS_MS = 1_800_000_000_000


def rows_of(*entries: list, with_extra: bool = False) -> list[dict]:
    raw = [(f"{at + 1}-5".encode(), [encoded(part) for part in fields]) for at, fields in enumerate(entries)]  # fmt: skip
    batch = event_batch("emails", raw, with_extra=with_extra)
    assert batch.schema == EVENTS_ARROW
    return batch.to_pylist()


def encoded(part: str | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.encode()


def told(row: dict) -> dict:
    return {column: value for column, value in row.items() if value is not None}


def moment(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def test_an_event_of_ours_has_everything():
    event = Event(
        kind="failed", job_id="j", ts_ms=TS_MS, name="mail", attempt=2, reason="no route",
        backoff_ms=5, delay_ms=6, duration_us=7, enqueued_at_ms=TS_MS - 9, worker="w",
        delivery_count=3, error_type="OSError", fingerprint="f", due_ms=TS_MS - 8,
    )  # fmt: skip

    (row,) = rows_of(encode_event(event))

    assert told(row) == {
        "queue": "emails", "stream_id": "1-5", "id_ms": 1, "id_seq": 5, "event": "failed",
        "job_id": "j", "name": "mail", "ts": moment(TS_MS), "attempt": 2, "duration_us": 7,
        "reason": "no route", "backoff_ms": 5, "delay_ms": 6, "enq": moment(TS_MS - 9),
        "worker": "w", "deliveries": 3, "error_class": "OSError", "fingerprint": "f",
        "due": moment(TS_MS - 8),
    }  # fmt: skip


def test_every_event_of_the_original_is_understood():
    fields = [event["fields"] for event in load("events")["events_clean_run"]["events"]]

    rows = rows_of(*[[part for pair in event for part in pair] for event in fields])

    assert [row["fault"] for row in rows] == [None] * len(fields)
    assert [row["event"] for row in rows] == [dict(event)["e"] for event in fields]
    assert [row["job_id"] for row in rows] == [dict(event)["id"] for event in fields]
    assert [row["ts"] for row in rows] == [moment(int(dict(event)["ts"])) for event in fields]


def test_an_event_that_names_no_job_has_an_empty_one():
    named, unnamed = rows_of(["e", "drained", "id", ""], ["e", "drained"])

    assert (named["job_id"], unnamed["job_id"]) == ("", "")


def test_an_event_of_a_kind_to_come_is_passed_on():
    (row,) = rows_of(["e", "stalled", "id", "j"])

    assert (row["event"], row["fault"]) == ("stalled", None)


@pytest.mark.parametrize(
    ("field", "column"),
    [("attempt", "attempt"), ("duration_us", "duration_us"), ("dc", "deliveries"), ("ts", "ts")],
)
@pytest.mark.parametrize("text", ["abc", "", "-5", "0x10", "1.5", "9" * 20, "٣", b"\xff"])
def test_a_number_that_is_none_is_empty_and_marked_and_kept(field, column, text):
    good, bad = rows_of(["e", "active", field, "7"], ["e", "active", field, text])

    assert good[column] is not None
    assert (bad[column], bad["fault"], bad["event"]) == (None, field, "active")
    assert bad["extra"] == [(field, encoded(text).decode(errors="replace"))]


def test_a_number_beyond_its_column_is_marked():
    (row,) = rows_of(["e", "active", "attempt", str(2**31), "duration_us", str(2**31)])

    assert (row["attempt"], row["duration_us"], row["fault"]) == (None, 2**31, "attempt")


def test_a_time_that_no_calendar_holds_is_marked():
    (row,) = rows_of(["e", "active", "ts", "253402300800000"])

    assert (row["ts"], row["fault"]) == (None, "ts")


def test_broken_text_is_shown_with_marks_and_marked():
    good, bad = rows_of(["e", "active", "id", "ö"], ["e", "active", "id", b"a\xff"])

    assert (good["job_id"], good["fault"]) == ("ö", None)
    assert (bad["job_id"], bad["fault"]) == ("a\ufffd", "id")


def test_several_faults_of_a_row_are_all_named():
    (row,) = rows_of(["e", "active", "attempt", "x", "ts", "y"])

    assert row["fault"] == "attempt, ts"


@pytest.mark.parametrize("fields", [["id", "j", "hello", "world"], ["e", "", "id", "j"]])
def test_an_entry_that_is_no_event_is_a_marker_with_all_it_has(fields):
    event, foreign = rows_of(["e", "active", "id", "j"], fields)

    assert (foreign["event"], foreign["job_id"]) == ("unreadable", None)
    assert foreign["fault"] == "an event must have a field e, got none"
    assert foreign["extra"] == list(zip(fields[::2], fields[1::2], strict=True))
    assert (event["event"], event["job_id"], event["extra"]) == ("active", "j", None)


def test_what_is_kept_of_a_foreign_entry_is_bounded():
    fields = [part for at in range(100) for part in (f"field-{at}", "x" * 5_000)]

    (row,) = rows_of(fields)

    assert len(row["extra"]) == 32
    assert {len(value) for _, value in row["extra"]} == {512}


def test_unknown_fields_are_kept_where_they_are_wanted():
    fields = ["e", "active", "id", "j", "trace", "t-1", "zone", b"\xff"]

    (without,), (wanted,) = rows_of(fields), rows_of(fields, with_extra=True)

    assert without["extra"] is None
    assert wanted["extra"] == [("trace", "t-1"), ("zone", "\ufffd")]
    assert (wanted["job_id"], wanted["fault"]) == ("j", None)


def test_the_first_of_a_repeated_field_wins():
    (row,) = rows_of(["e", "active", "e", "failed", "x", "1", "x", "2"], with_extra=True)

    assert (row["event"], row["extra"]) == ("active", [("x", "1")])


def test_the_largest_id_that_a_server_gives_is_read():
    raw = [(b"1-0", [b"e", b"a"]), (b"18446744073709551615-18446744073709551615", [b"e", b"a"])]

    first, last = event_batch("emails", raw, with_extra=False).to_pylist()

    assert (first["id_ms"], first["id_seq"]) == (1, 0)
    assert (last["stream_id"], last["id_ms"]) == ("18446744073709551615-18446744073709551615", None)


def test_a_gap_says_where_how_much_and_why():
    (row,) = gap_batch("emails", "5-0", None, "reset", "the stream was deleted").to_pylist()

    assert told(row) == {
        "queue": "emails", "stream_id": "5-0", "event": "gap", "fault": "reset",
        "reason": "the stream was deleted",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "wild"),
    [
        ("duration_us", 2**63 - 1),
        ("duration_us", 2**52),
        ("backoff_ms", 2**60),
        ("delay_ms", 2**42),
    ],
)
def test_a_time_of_more_than_a_century_is_a_fault(field, wild):
    (row,) = rows_of(["e", "completed", "id", "a", field, str(wild)])

    assert (row[field], row["fault"], row["extra"]) == (None, field, [(field, str(wild))])
