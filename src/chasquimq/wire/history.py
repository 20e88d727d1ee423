"""Reads the entries of the history stream: columns of finished attempts, one list a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.history import AttemptRow
from chasquimq.wire.stream_entry import first_values, read_text, read_uint

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
