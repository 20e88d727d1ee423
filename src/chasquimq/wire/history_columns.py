"""The columns of a history entry and the MessagePack array that carries them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from chasquimq.errors import DecodeError, EncodeError
from chasquimq.model.attempt_row import AttemptRow
from chasquimq.wire.stream_entry import safe_text

if TYPE_CHECKING:
    from chasquimq.model.verdict import Failure
    from chasquimq.wire.history_rows import HistoryRows

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
        base_us = self.base_ms * 1_000
        for at, job_id in enumerate(self.job_ids):
            error_at = self.error_index[at]
            error = None if error_at is None else self.errors[error_at]
            yield AttemptRow(
                job_id=job_id,
                name=self.names[self.name_index[at]],
                attempt=self.attempts[at],
                outcome=self.outcomes[at],
                enqueued_at_ms=_since(self.base_ms, self.enqueued_ms[at]),
                ready_at_ms=_since(self.base_ms, self.ready_ms[at]),
                due_ms=_since(self.base_ms, self.due_ms[at]),
                started_at_us=_since(base_us, self.started_us[at]),
                duration_us=self.durations_us[at],
                deliveries=self.deliveries[at],
                backoff_ms=self.backoffs_ms[at],
                error_type=error and error.error_type,
                error=error and error.message,
                fingerprint=error and error.fingerprint,
            )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HistoryColumns).decode


def pack_rows(rows: HistoryRows) -> bytes:
    """Spell rows as columns; names and errors become dictionaries, times become offsets.

    Raises:
        EncodeError: a count does not fit into 64 bits.
    """
    base_ms = _base_ms(rows)
    names, name_index = _indexed(rows.names)
    errors, error_index = _indexed_errors(rows.failures)
    columns = HistoryColumns(
        base_ms, rows.job_ids, names, name_index, rows.attempts, rows.outcomes,
        _offsets(rows.enqueued_ms, base_ms), _offsets(rows.ready_ms, base_ms),
        _offsets(rows.due_ms, base_ms), _offsets(rows.started_us, base_ms * 1_000),
        rows.durations_us, rows.deliveries, rows.backoffs_ms, errors, error_index,
    )  # fmt: skip
    try:
        return _encode(columns)
    except (OverflowError, ValueError) as error:
        raise EncodeError(f"rows of the history must have a MessagePack form: {error}") from error


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


def _base_ms(rows: HistoryRows) -> int:
    """The first start, or where nothing started the first that became ready."""
    starts_us = (us for us in rows.started_us if us is not None)
    first_us = next(starts_us, None)
    if first_us is not None:
        return first_us // 1_000
    return min([ms for ms in rows.ready_ms if ms is not None], default=0)


# Nearly all rows of a busy queue are alike: the short ways take half the time of the long ones.
def _offsets(moments: list[int | None], base: int) -> list[int | None]:
    try:
        return [moment - base for moment in cast("list[int]", moments)]
    except TypeError:  # some are unknown
        return [None if moment is None else moment - base for moment in moments]


def _since(base: int, offset: int | None) -> int | None:
    return None if offset is None else base + offset


def _indexed(texts: list[str]) -> tuple[list[str], list[int]]:
    distinct = list(dict.fromkeys(texts))
    if len(distinct) == 1:
        return distinct, [0] * len(texts)
    place = {text: at for at, text in enumerate(distinct)}
    return distinct, [place[text] for text in texts]


def _indexed_errors(
    failures: list[Failure | None],
) -> tuple[list[ErrorNote], list[int | None]]:
    if failures.count(None) == len(failures):
        return [], cast("list[int | None]", failures)
    distinct = dict.fromkeys(failures)
    distinct.pop(None, None)
    place: dict[Failure | None, int | None] = {None: None}
    place.update({failure: at for at, failure in enumerate(distinct)})
    notes = [_note(failure) for failure in distinct if failure is not None]
    return notes, [place[failure] for failure in failures]


def _note(failure: Failure) -> ErrorNote:
    return ErrorNote(
        safe_text(failure.error_type, _ERROR_TYPE_CHARS_MAX),
        safe_text(failure.message, ERROR_CHARS_MAX),
        failure.fingerprint,
    )


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
