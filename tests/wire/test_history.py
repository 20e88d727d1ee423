"""History entries: round trips, golden bytes, strangers, and what a row weighs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chasquimq.errors import DecodeError, EncodeError
from chasquimq.model.delivery import Delivery, DlqReason, Failure, RejectedEntry
from chasquimq.wire.history import (
    AttemptOutcome,
    AttemptRow,
    HistoryEntry,
    decode_history,
    outcome_label,
)
from chasquimq.wire.history_writer import ERROR_CHARS_MAX, HistoryBlock, HistoryRows, encode_history
from chasquimq.wire.new_job import new_job_ids
from support.attempts import block_of
from wire.vectors import cases, flat, load

GOLDEN = load("history")["entries"]
OFFSET_US = 1_794_726_955_000_000
TIMES_US = st.integers(0, 2**60)
COUNTS = st.integers(0, 2**32)
TIMES_MS = st.integers(0, 2**61)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
FAILURES = st.builds(Failure, TEXTS, TEXTS)
ROWS = st.lists(
    st.tuples(
        TEXTS,
        st.sampled_from(["", "mail", "sms", "naïve"]),
        COUNTS,
        st.sampled_from([*AttemptOutcome]).map(int),
        st.none() | TIMES_MS,
        st.none() | TIMES_MS,
        st.none() | TIMES_MS,
        st.none() | TIMES_US,
        COUNTS,
        COUNTS,
        COUNTS,
        st.none() | FAILURES,
    ),
    max_size=20,
)
COLUMNS = (
    "job_ids", "names", "attempts", "outcomes", "enqueued_ms", "ready_ms", "due_ms", "started_us",
    "durations_us", "deliveries", "backoffs_ms", "failures",
)  # fmt: skip


def rows_of(drawn):
    rows = HistoryRows()
    for values in drawn:
        for column, value in zip(COLUMNS, values, strict=True):
            getattr(rows, column).append(value)
    return rows


def attempt_of(values):
    """The row that a reader should see."""
    *plain, failure = values
    fields = [field for field in AttemptRow.__struct_fields__ if "error" not in field]
    return AttemptRow(
        **dict(zip(fields, plain, strict=False)),
        error_type=failure and failure.error_type,
        error=failure and failure.message,
        fingerprint=failure and failure.fingerprint,
    )


def delivery(job_id="job-1", **changes):
    fields = {
        "entry_id": b"1794726955294-3",
        "job_id": job_id,
        "name": "mail",
        "payload": b"",
        "created_at_ms": 1_794_726_955_290,
        "spent": 1,
        "earlier": 1,
        "retry": None,
        "extras": None,
        "due_ms": None,
        "envelope": b"",
        "started_ns": 5_000_000,
        "duration_us": 42,
    }
    return Delivery(**(fields | changes))


def encoded(rows, **changes):
    block = block_of(rows) if isinstance(rows, HistoryRows) else rows
    return encode_history(block, **({"worker": "w1", "run": "r1", "seq": 7} | changes))


def completed(count=1):
    rows = HistoryRows()
    rows.add_completed([delivery(f"job-{at}") for at in range(count)], OFFSET_US)
    return rows


def with_field(fields, name, value):
    """The same entry with one field changed, or left out."""
    pairs = zip(fields[::2], fields[1::2], strict=True)
    kept = [part for key, old in pairs if key != name for part in (key, old)]
    return kept if value is None else [*kept, name, value]


def with_columns(fields, change):
    columns = msgspec.msgpack.decode(fields[-1])
    change(columns)
    return with_field(fields, b"b", msgspec.msgpack.encode(columns))


@given(ROWS)
def test_rows_survive_the_wire(drawn):
    entry = decode_history(encoded(rows_of(drawn)))

    assert entry.rows() == [attempt_of(values) for values in drawn]


@given(
    worker=TEXTS,
    run=TEXTS,
    seq=st.integers(0, 2**63),
    lost=st.integers(0, 2**63),
    is_last=st.booleans(),
)
def test_what_an_entry_says_about_itself_survives_the_wire(**about):
    entry = decode_history(encoded(completed(2), **about))

    assert {field: getattr(entry, field) for field in about} == about
    assert (entry.version, entry.kind, entry.row_count) == (1, "attempts", 2)


@pytest.mark.parametrize("golden", cases(GOLDEN))
def test_an_entry_is_spelled_as_it_always_was(golden):
    rows = rows_of(
        [*row[:-1], Failure(*row[-1]) if row[-1] is not None else None] for row in golden["rows"]
    )

    assert encoded(rows, **golden["about"]) == flat(golden["fields"])


@pytest.mark.parametrize("golden", cases(GOLDEN))
def test_an_entry_of_old_is_read(golden):
    entry = decode_history(flat(golden["fields"]))

    assert [msgspec.structs.asdict(row) for row in entry.rows()] == golden["read"]


def test_fields_stand_in_their_order_and_only_when_they_say_something():
    plain = encoded(completed())
    full = encoded(completed(), lost=3, is_last=True)

    assert b" ".join(plain[::2]) == b"v w r s t n b"
    assert b" ".join(full[::2]) == b"v w r s end t n lost b"


def test_a_completed_delivery_becomes_a_row():
    (row,) = decode_history(encoded(completed())).rows()

    assert row == AttemptRow(
        job_id="job-0",
        name="mail",
        attempt=3,
        outcome=AttemptOutcome.COMPLETED,
        enqueued_at_ms=1_794_726_955_290,
        ready_at_ms=1_794_726_955_294,
        due_ms=None,
        started_at_us=OFFSET_US + 5_000,
        duration_us=42,
        deliveries=2,
        backoff_ms=0,
    )


def test_a_failed_delivery_keeps_its_backoff_and_its_error():
    rows = HistoryRows()
    failure = Failure("ValueError", "no order 7")

    rows.add(delivery(due_ms=5), AttemptOutcome.RETRIED, OFFSET_US, backoff_ms=200, failure=failure)

    (row,) = decode_history(encoded(rows)).rows()
    assert (row.outcome, row.backoff_ms, row.due_ms) == (AttemptOutcome.RETRIED, 200, 5)
    assert (row.error_type, row.error, row.fingerprint) == (
        "ValueError",
        "no order 7",
        failure.fingerprint,
    )


def test_a_delivery_that_never_started_has_neither_start_nor_attempt():
    rows = HistoryRows()

    rows.add(delivery(started_ns=0, duration_us=0), AttemptOutcome.DEAD, OFFSET_US)

    (row,) = decode_history(encoded(rows)).rows()
    assert (row.started_at_us, row.attempt, row.deliveries) == (None, 0, 2)


def test_an_entry_that_could_not_be_read_becomes_a_row_without_an_id():
    rows = HistoryRows()

    rows.add_rejected(RejectedEntry(b"1794726955294-0", DlqReason.MALFORMED, "no d", "mail", b""))

    (row,) = decode_history(encoded(rows)).rows()
    assert (row.job_id, row.name, row.outcome) == ("", "mail", AttemptOutcome.REJECTED)
    assert (row.ready_at_ms, row.enqueued_at_ms) == (1_794_726_955_294, None)


def test_equal_names_and_errors_are_written_once():
    rows = HistoryRows()
    failure = Failure("TimeoutError", "the other side is slow")
    for at in range(50):
        rows.add(delivery(f"{at}"), AttemptOutcome.RETRIED, OFFSET_US, failure=failure)

    packed = encoded(rows)[-1]

    assert packed.count(b"the other side is slow") == 1
    assert packed.count(b"mail") == 1


def test_an_error_is_cut_and_always_encodable():
    rows = HistoryRows()
    failure = Failure("E" * 900, "\udcff" + "x" * 9_000)

    rows.add(delivery(), AttemptOutcome.DEAD, OFFSET_US, failure=failure)

    (row,) = decode_history(encoded(rows)).rows()
    assert row.error.startswith("\\udcffx")
    assert len(row.error) == ERROR_CHARS_MAX + len("\\udcff") - 1
    assert len(row.error_type) == 256


USUAL = st.builds(
    delivery,
    job_id=TEXTS,
    name=st.sampled_from(["mail", "ping", ""]),
    entry_id=st.integers(1, 10**14 + 10).map(lambda ms: b"%d-3" % ms),
    created_at_ms=st.integers(0, 10**14 + 10),
    spent=st.sampled_from([0] * 9 + [2]),
    earlier=st.sampled_from([0] * 9 + [1]),
    due_ms=st.sampled_from([None] * 9 + [5]),
    started_ns=st.integers(1, 10**16),
    duration_us=COUNTS,
)
BATCHES = st.lists(st.lists(USUAL, min_size=1, max_size=4).map(lambda some: some * 12), max_size=5)


@given(BATCHES)
def test_jobs_that_are_spelled_as_they_come_read_like_rows_that_waited(batches):
    block, rows = HistoryBlock(), HistoryRows()
    for batch in batches:
        block.add_completed(batch, OFFSET_US)
        rows.add_completed(batch, OFFSET_US)

    assert encoded(block) == encoded(rows)


def test_rows_of_all_kinds_keep_their_order_in_an_entry():
    block, failure = HistoryBlock(), Failure("ValueError", "no")
    usual = [delivery(f"usual-{at}", spent=0, earlier=0) for at in range(50)]
    block.rows.add(delivery("dead"), AttemptOutcome.DEAD, OFFSET_US, failure=failure)
    block.add_completed(usual, OFFSET_US)
    block.rows.add_rejected(
        RejectedEntry(b"7-0", DlqReason.MALFORMED, "no d", "ping", b""), failure
    )
    block.add_completed([delivery("again", name="ping")], OFFSET_US)

    rows = decode_history(encoded(block)).rows()

    assert len(block) == len(rows) == 53
    assert [row.job_id for row in rows] == ["dead", *[one.job_id for one in usual], "", "again"]
    assert [row.name for row in rows] == ["mail"] * 51 + ["ping"] * 2
    assert [row.error for row in rows] == ["no", *[None] * 50, "no", None]


def test_a_batch_that_is_refused_costs_none_of_the_others():
    block = HistoryBlock()
    many = [delivery(f"{at}", spent=0, earlier=0) for at in range(50)]
    block.add_completed(many, OFFSET_US)

    with pytest.raises(EncodeError, match="rows of the history"):
        block.add_completed([delivery(spent=0, earlier=0, duration_us=2**66)] * 50, OFFSET_US)

    rows = decode_history(encoded(block)).rows()
    assert [row.job_id for row in rows] == [one.job_id for one in many]


def test_an_entry_without_rows_can_say_that_it_is_the_last():
    entry = decode_history(encoded(HistoryRows(), is_last=True))

    assert (entry.rows(), entry.row_count, entry.is_last) == ([], 0, True)


def test_fields_and_columns_of_a_later_version_are_let_be():
    later = with_columns(encoded(completed()), lambda columns: columns.append([{"deep": [1]}]))
    later = with_field(later, b"mood", b"good")

    assert decode_history(later).rows() == decode_history(encoded(completed())).rows()


@pytest.mark.parametrize(
    ("field", "value"), [(b"t", b"fires"), (b"v", b"2")], ids=["kind", "version"]
)
def test_an_unknown_kind_or_version_is_named_but_not_read(field, value):
    strange = with_field(with_field(encoded(completed()), field, value), b"b", b"\xc1")

    entry = decode_history(strange)

    assert (entry.columns, entry.rows(), entry.row_count, entry.seq) == (None, [], 1, 7)


def test_an_outcome_of_a_later_version_is_shown_by_its_number():
    def change(columns):
        columns[5] = [9]

    (row,) = decode_history(with_columns(encoded(completed()), change)).rows()

    assert (row.outcome, outcome_label(row.outcome)) == (9, "outcome-9")


def test_every_outcome_has_its_number_and_its_word():
    assert [(int(one), outcome_label(one)) for one in AttemptOutcome] == [
        (0, "completed"),
        (1, "retried"),
        (2, "dead"),
        (3, "rejected"),
        (4, "snoozed"),
        (5, "stale"),
        (6, "unproven"),
    ]


@pytest.mark.parametrize("field", [b"v", b"w", b"r", b"s", b"t", b"n", b"b"])
def test_an_entry_without_a_field_it_needs_is_refused(field):
    with pytest.raises(DecodeError, match="history entry must"):
        decode_history(with_field(encoded(completed()), field, None))


@pytest.mark.parametrize("field", [b"v", b"s", b"n"])
def test_a_number_that_is_none_is_refused(field):
    with pytest.raises(DecodeError, match="must have a number"):
        decode_history(with_field(encoded(completed()), field, b"-1"))


@pytest.mark.parametrize(
    "packed",
    [b"", b"\xc1", b"\x90", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([0] * 15)],
    ids=["nothing", "noise", "empty", "map", "numbers"],
)
def test_columns_that_are_none_are_refused(packed):
    with pytest.raises(DecodeError, match="columns of a history entry"):
        decode_history(with_field(encoded(completed()), b"b", packed))


@pytest.mark.parametrize("at", [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14])
def test_a_column_that_is_longer_than_the_others_is_refused(at):
    def change(columns):
        columns[at].append("job" if at == 1 else 0)

    with pytest.raises(DecodeError, match="rows"):
        decode_history(with_columns(encoded(completed(2)), change))


@pytest.mark.parametrize("place", [1, -1], ids=["beyond", "below"])
@pytest.mark.parametrize("at", [3, 14], ids=["name", "error"])
def test_an_index_that_points_nowhere_is_refused(at, place):
    def change(columns):
        columns[at] = [place]

    with pytest.raises(DecodeError, match="an index of a history entry"):
        decode_history(with_columns(encoded(completed()), change))


def test_a_count_that_does_not_fit_the_rows_is_refused():
    with pytest.raises(DecodeError, match="must have 3 rows, got 2"):
        decode_history(with_field(encoded(completed(2)), b"n", b"3"))


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"v", b"1", b"t", b"b"]), max_size=20))
def test_any_fields_are_an_entry_or_a_decode_error(fields):
    try:
        entry = decode_history(fields)
    except DecodeError:
        return
    assert isinstance(entry, HistoryEntry)


@given(st.binary(max_size=60))
def test_any_columns_are_rows_or_a_decode_error(packed):
    try:
        entry = decode_history(with_field(encoded(HistoryRows()), b"b", packed))
    except DecodeError:
        return
    assert entry.rows() == []


def test_a_count_beyond_64_bits_is_refused_by_the_writer():
    rows = HistoryRows()
    rows.add_completed([delivery(duration_us=2**66)], OFFSET_US)

    with pytest.raises(EncodeError, match="rows of the history"):
        encoded(rows)


def test_a_time_that_no_clock_shows_is_unknown_and_costs_no_other_row():
    rows = HistoryRows()
    strange = delivery("strange", created_at_ms=2**64, entry_id=b"18446744073709551615-1")
    rows.add_completed([delivery("sane"), strange], OFFSET_US)

    sane, odd = decode_history(encoded(rows)).rows()

    assert (odd.enqueued_at_ms, odd.ready_at_ms, odd.duration_us) == (None, None, 42)
    assert (sane.enqueued_at_ms, sane.ready_at_ms) == (1_794_726_955_290, 1_794_726_955_294)


@pytest.mark.parametrize(("count", "bytes_max"), [(10, 58), (100, 51), (1_000, 51)])
def test_a_row_weighs_little(count, bytes_max):
    rows = HistoryRows()
    rows.add_completed(
        [
            delivery(job_id, started_ns=at * 250_000 + 1, duration_us=200)
            for at, job_id in enumerate(new_job_ids(count, 1_794_726_955_290))
        ],
        OFFSET_US,
    )

    fields = encoded(rows, worker="worker-host-01:12345:a1b2c3", run="01J8ZQ5T9W4R7N2B6M3C")

    assert sum(map(len, fields)) / count <= bytes_max
