"""Reads the history stream: rows of finished attempts, and how complete a day of them is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.wire.stream_entry import first_values, read_text, read_uint


class AttemptOutcome(IntEnum):
    """How an attempt ended; the numbers are on the wire and never change.

    `rejected` never reached a handler. `snoozed` runs again and spends no attempt. `stale` came
    after another outcome of its job. `unproven`: the connection broke, so the server may or may
    not have counted it.
    """

    COMPLETED = 0
    RETRIED = 1
    DEAD = 2
    REJECTED = 3
    SNOOZED = 4
    STALE = 5
    UNPROVEN = 6

    @property
    def label(self) -> str:
        return self.name.lower()


def outcome_label(number: int) -> str:
    """Return the name of an outcome; one of a later version is shown by its number."""
    try:
        return AttemptOutcome(number).label
    except ValueError:
        return f"outcome-{number}"


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One finished attempt; None where its writer did not know, or the attempt never started.

    `enqueued_at_ms` is of the producer's clock, the other times are of the server's. `attempt`
    counts from 1, and is 0 where no handler saw the job. `deliveries` counts this one too.
    """

    job_id: str
    name: str
    attempt: int
    outcome: int
    enqueued_at_ms: int | None
    ready_at_ms: int | None
    due_ms: int | None
    started_at_us: int | None
    duration_us: int
    deliveries: int
    backoff_ms: int
    error_type: str | None = None
    error: str | None = None
    fingerprint: str | None = None


class DayCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one queue on one day; None where it is not known.

    `server_finished` is what left the stream by the server's own counter, `rows_finished` the rows
    about it. `has_unknown_gap`: entries are missing, and the number of their rows is not known.
    `unobserved` jobs left the stream before the first look at it, and may have no row; `beyond` are
    rows of a later time by a clock that may be ahead.
    """

    queue: str
    day: str
    server_finished: int | None
    rows_finished: int
    rows_lost: int = 0
    unproven: int = 0
    unobserved: int = 0
    beyond: int = 0
    has_unknown_gap: bool = False
    is_settled: bool = True


class DayVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is missing of a day: for certain, or explained by a known gap; or what is too much."""

    missing_proven: int | None
    missing_maybe: int | None
    surplus: int | None


def judge_days(days: Sequence[DayCounts]) -> list[DayVerdict]:
    """Judge the days of one queue, oldest first.

    A job that ends at midnight may be counted on one side of it and have its row on the other, so
    what is missing on one day and too much on the next, or the other way round, is neither.
    """
    left = [_difference(day) for day in days]
    for at in range(1, len(left)):
        left[at - 1], left[at] = _cancelled(left[at - 1], left[at])
    return [_verdict(day, missing) for day, missing in zip(days, left, strict=True)]


def _difference(day: DayCounts) -> int | None:
    return None if day.server_finished is None else day.server_finished - day.rows_finished


def _cancelled(first: int | None, second: int | None) -> tuple[int | None, int | None]:
    if first is None or second is None or first * second >= 0:
        return first, second
    shared = min(abs(first), abs(second))
    return (first - shared, second + shared) if first > 0 else (first + shared, second - shared)


def _verdict(day: DayCounts, missing: int | None) -> DayVerdict:
    if missing is None:
        return DayVerdict(missing_proven=None, missing_maybe=None, surplus=None)
    if missing <= 0:
        return DayVerdict(missing_proven=0, missing_maybe=0, surplus=-missing)
    known = day.rows_lost + day.unproven + day.unobserved + day.beyond
    maybe = missing if _may_all_be_explained(day) else min(missing, known)
    return DayVerdict(missing_proven=missing - maybe, missing_maybe=maybe, surplus=0)


def _may_all_be_explained(day: DayCounts) -> bool:
    return day.has_unknown_gap or not day.is_settled


VERSION = 1
ATTEMPTS = "attempts"


class ErrorNote(msgspec.Struct, array_like=True, frozen=True):
    """An error as the dictionary of an entry holds it, once for all its rows."""

    error_type: str
    message: str
    fingerprint: str


class HistoryColumns(msgspec.Struct, array_like=True):
    """The columns in their order on the wire; later versions append theirs behind.

    Every time counts from `base_ms`, a moment of the server's clock near them all, and may be
    negative: small numbers are short. Indices point into `names` and `errors`; None: no error.
    """

    base_ms: int
    job_ids: list[str]
    names: list[str]
    name_index: list[int]
    attempts: list[int]
    outcomes: list[int]
    enqueued_ms: list[int | None]
    ready_ms: list[int | None]
    due_ms: list[int | None]
    started_us: list[int | None]
    durations_us: list[int]
    deliveries: list[int]
    backoffs_ms: list[int]
    errors: list[ErrorNote]
    error_index: list[int | None]

    def __len__(self) -> int:
        return len(self.job_ids)

    def rows(self) -> Iterator[AttemptRow]:
        """The attempts one by one, for display and tests; use the columns for many."""
        return map(self.row, range(len(self)))

    def row(self, at: int) -> AttemptRow:
        """One attempt, by its place."""
        error_at = self.error_index[at]
        error = None if error_at is None else self.errors[error_at]
        return AttemptRow(
            job_id=self.job_ids[at],
            name=self.names[self.name_index[at]],
            attempt=self.attempts[at],
            outcome=self.outcomes[at],
            enqueued_at_ms=_since(self.base_ms, self.enqueued_ms[at]),
            ready_at_ms=_since(self.base_ms, self.ready_ms[at]),
            due_ms=_since(self.base_ms, self.due_ms[at]),
            started_at_us=_since(self.base_ms * 1_000, self.started_us[at]),
            duration_us=self.durations_us[at],
            deliveries=self.deliveries[at],
            backoff_ms=self.backoffs_ms[at],
            error_type=error and error.error_type,
            error=error and error.message,
            fingerprint=error and error.fingerprint,
        )


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as read; `columns` is None where its version or kind is not known here.

    `seq` counts the entries of a run of a worker, so that a gap is a measured loss. `lost` rows
    were given up before this entry. A run whose last entry has no `is_last` has an open end.
    """

    version: int
    worker: str
    run: str
    seq: int
    is_last: bool
    kind: str
    row_count: int
    lost: int
    columns: HistoryColumns | None = None

    def rows(self) -> list[AttemptRow]:
        """The attempts, one by one."""
        return [] if self.columns is None else list(self.columns.rows())


_decode = msgspec.msgpack.Decoder(HistoryColumns).decode


def decode_history(fields: Sequence[bytes]) -> HistoryEntry:
    """Read an entry of this version or a later one; unknown fields and columns are let be.

    Raises:
        DecodeError: the entry is not of the history, or its rows cannot be read.
    """
    found = first_values(fields)
    entry = HistoryEntry(
        version=_number(found, b"v"),
        worker=_text(found, b"w"),
        run=_text(found, b"r"),
        seq=_number(found, b"s"),
        is_last=found.get(b"end") == b"1",
        kind=_text(found, b"t"),
        row_count=_number(found, b"n"),
        lost=read_uint(found.get(b"lost")) or 0,
    )
    if entry.version != VERSION or entry.kind != ATTEMPTS:
        return entry
    columns = read_columns(found.get(b"b", b""))
    if len(columns) != entry.row_count:
        raise DecodeError(f"a history entry must have {entry.row_count} rows, got {len(columns)}")
    return msgspec.structs.replace(entry, columns=columns)


def read_columns(packed: bytes) -> HistoryColumns:
    """Read columns of this version or a later one.

    Raises:
        DecodeError: the bytes are no columns, or some are shorter than others.
    """
    try:
        columns = _decode(packed)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the columns of a history entry must be readable: {error}") from error
    _check_lengths(columns)
    _check_index(columns.name_index, len(columns.names))
    _check_index([at for at in columns.error_index if at is not None], len(columns.errors))
    return columns


def _since(base: int, offset: int | None) -> int | None:
    return None if offset is None else base + offset


def _check_lengths(columns: HistoryColumns) -> None:
    count = len(columns)
    aligned = (
        columns.name_index, columns.attempts, columns.outcomes, columns.enqueued_ms,
        columns.ready_ms, columns.due_ms, columns.started_us, columns.durations_us,
        columns.deliveries, columns.backoffs_ms, columns.error_index,
    )  # fmt: skip
    if any(len(column) != count for column in aligned):
        raise DecodeError(f"the columns of a history entry must all have {count} rows")


def _check_index(index: Sequence[int], size: int) -> None:
    if index and not 0 <= min(index) <= max(index) < size:
        raise DecodeError(f"an index of a history entry must be from 0 to {size - 1}")


def _number(found: dict[bytes, bytes], field: bytes) -> int:
    number = read_uint(found.get(field))
    if number is None:
        raise DecodeError(f"a history entry must have a number in {field.decode()}")
    return number


def _text(found: dict[bytes, bytes], field: bytes) -> str:
    if field not in found:
        raise DecodeError(f"a history entry must have a field {field.decode()}")
    return read_text(found[field])
