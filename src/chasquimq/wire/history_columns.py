"""The columns of a history entry and the MessagePack array that carries them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.attempt_row import AttemptRow
from chasquimq.wire.stream_entry import safe_text

if TYPE_CHECKING:
    from chasquimq.model.verdict import Failure

ERROR_CHARS_MAX = 512
_ERROR_TYPE_CHARS_MAX = 256


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
        """The attempts one by one, for eyes and tests; columns are for whoever has many."""
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


_decode = msgspec.msgpack.Decoder(HistoryColumns).decode


def error_note(failure: Failure) -> ErrorNote:
    """An error as it goes into the dictionary: cut, and always encodable."""
    return ErrorNote(
        safe_text(failure.error_type, _ERROR_TYPE_CHARS_MAX),
        safe_text(failure.message, ERROR_CHARS_MAX),
        failure.fingerprint,
    )


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
