"""The columns of a history entry and the MessagePack array that carries them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from chasquimq.errors import DecodeError, EncodeError
from chasquimq.model.delivery import ready_times_ms
from chasquimq.model.history import AttemptOutcome, AttemptRow
from chasquimq.wire.stream_entry import first_values, read_text, read_uint, safe_text

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery, RejectedEntry
    from chasquimq.model.retry import Failure

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


# In the year 5138; clocks and calendars of readers go further, but not by much.
TIME_MS_MAX = 10**14


class HistoryRows:
    """Finished attempts of one worker, waiting to be packed; each column is a plain list."""

    __slots__ = (
        "attempts", "backoffs_ms", "deliveries", "due_ms", "durations_us", "enqueued_ms",
        "failures", "job_ids", "names", "outcomes", "ready_ms", "started_us",
    )  # fmt: skip

    def __init__(self) -> None:
        self.job_ids: list[str] = []
        self.names: list[str] = []
        self.attempts: list[int] = []
        self.outcomes: list[int] = []
        self.enqueued_ms: list[int | None] = []
        self.ready_ms: list[int | None] = []
        self.due_ms: list[int | None] = []
        self.started_us: list[int | None] = []
        self.durations_us: list[int] = []
        self.deliveries: list[int] = []
        self.backoffs_ms: list[int] = []
        self.failures: list[Failure | None] = []

    def __len__(self) -> int:
        return len(self.job_ids)

    @property
    def base_ms(self) -> int:
        """The first start, or where nothing started the first that became ready."""
        first_us = next((us for us in self.started_us if us is not None), None)
        if first_us is not None:
            return first_us // 1_000
        return min([ms for ms in self.ready_ms if ms is not None], default=0)

    def add_completed(self, batch: Sequence[Delivery], offset_us: int) -> None:
        """Add jobs that are done; `offset_us` is the server's clock minus our monotonic one."""
        count = len(batch)
        if not count:
            return
        self._add_deliveries(batch)
        runs_before = [one.spent + one.earlier for one in batch]
        if any(runs_before):
            self.attempts += [runs + 1 for runs in runs_before]
            self.deliveries += [one.earlier + 1 for one in batch]
        else:
            self.attempts += [1] * count
            self.deliveries += [1] * count
        self.started_us += [one.started_ns // 1_000 + offset_us for one in batch]
        self.outcomes += [AttemptOutcome.COMPLETED.value] * count
        self.backoffs_ms += [0] * count
        self.failures += [None] * count

    def add(
        self,
        delivery: Delivery,
        outcome: AttemptOutcome,
        offset_us: int,
        *,
        backoff_ms: int = 0,
        failure: Failure | None = None,
    ) -> None:
        """Add one attempt that came to anything."""
        started_ns = delivery.started_ns
        self._add_deliveries((delivery,))
        self.attempts.append(delivery.run_number if started_ns else 0)
        self.deliveries.append(delivery.earlier + 1)
        self.started_us.append(started_ns // 1_000 + offset_us if started_ns else None)
        self.outcomes.append(outcome.value)
        self.backoffs_ms.append(backoff_ms)
        self.failures.append(failure)

    def add_rejected(self, arrival: RejectedEntry, failure: Failure | None = None) -> None:
        """Add an entry that could not become a delivery: only its name and its place are known."""
        self.job_ids.append("")
        self.names.append(arrival.name)
        self.attempts.append(0)
        self.outcomes.append(AttemptOutcome.REJECTED.value)
        self.enqueued_ms.append(None)
        self.ready_ms += _sane([int(arrival.entry_id.partition(b"-")[0])])
        self.due_ms.append(None)
        self.started_us.append(None)
        self.durations_us.append(0)
        self.deliveries.append(1)
        self.backoffs_ms.append(0)
        self.failures.append(failure)

    def _add_deliveries(self, batch: Sequence[Delivery]) -> None:
        # A comprehension a column: half the time of a loop that fills them row by row.
        self.job_ids += [one.job_id for one in batch]
        self.names += [one.name for one in batch]
        self.enqueued_ms += _sane([one.created_at_ms for one in batch])
        self.ready_ms += _sane(ready_times_ms(batch))
        self.due_ms += _sane_dues([one.due_ms for one in batch])
        self.durations_us += [one.duration_us for one in batch]


# Nearly all rows of a busy queue are alike: the short ways take half the time of the long ones.
def offsets(moments: list[int | None], base: int) -> list[int | None]:
    """How far each is from the base; what is unknown stays so."""
    try:
        return [moment - base for moment in cast("list[int]", moments)]
    except TypeError:  # some are unknown
        return [None if moment is None else moment - base for moment in moments]


def _sane(times_ms: list[int]) -> list[int | None]:
    """A time that no clock shows is unknown: it must not cost the rows beside it."""
    if max(times_ms) <= TIME_MS_MAX:
        return cast("list[int | None]", times_ms)
    return [ms if ms <= TIME_MS_MAX else None for ms in times_ms]


def _sane_dues(times_ms: list[int | None]) -> list[int | None]:
    if times_ms.count(None) == len(times_ms):
        return times_ms
    return [ms if ms is not None and ms <= TIME_MS_MAX else None for ms in times_ms]


# The elements of each column that has one a row, in their order on the wire.
_Strip = tuple[bytes, ...]
_COLUMN_COUNT = 12
# Fewer jobs cost less if they wait as rows.
_STRIP_ROWS_MIN = 24
# An array of all columns: those, the base and the two dictionaries.
_ENTRY_HEAD = b"\x9f"
_ZERO, _ONE, _NONE = b"\x00", b"\x01", b"\xc0"
_encode = msgspec.msgpack.Encoder().encode


class HistoryBlock:
    """Names and errors become dictionaries, times become offsets from a base near them all.

    Jobs that are done are encoded as they come, because objects that wait for an entry to fill
    push those of the next jobs out of the caches. Others, and a few, wait as `rows` until then.
    """

    def __init__(self) -> None:
        self.rows = HistoryRows()
        self._chosen_base_ms: int | None = None
        self._names: dict[str, int] = {}
        self._errors: dict[Failure, int] = {}
        self._strips: list[_Strip] = []
        self._encoded_count = 0

    def __len__(self) -> int:
        return self._encoded_count + len(self.rows)

    def add_completed(self, batch: Sequence[Delivery], offset_us: int) -> None:
        """Add jobs that are done; `offset_us` is the server's clock minus our monotonic one.

        Raises:
            EncodeError: a count does not fit into 64 bits. Where it is in the batch, that is not
                added; where it is in rows that waited, they are gone, and so is the batch.
        """
        names = _usual_names(batch) if len(batch) >= _STRIP_ROWS_MIN else None
        columns = self._usual_columns(batch, offset_us) if names else None
        if not names or columns is None:
            self.rows.add_completed(batch, offset_us)
            return
        self._encode_rows()
        self._add_usual(columns, self._name_elements(batch, names), len(batch))

    def pack(self) -> bytes:
        """The columns as one MessagePack array.

        Raises:
            EncodeError: a count does not fit into 64 bits; the rows that waited are gone, and what
                was encoded before can be packed.
        """
        self._encode_rows()
        strips = zip(*self._strips, strict=True) if self._strips else [()] * _COLUMN_COUNT
        head = _array_head(self._encoded_count)
        job_ids, *numbers, error_index = [head + b"".join(pieces) for pieces in strips]
        errors: list[ErrorNote] = [error_note(one) for one in self._errors]
        base, names = _encode(self._chosen_base_ms or 0), _encode(list(self._names))
        parts = (_ENTRY_HEAD, base, job_ids, names, *numbers, _encode(errors), error_index)
        return b"".join(parts)

    def _encode_rows(self) -> None:
        if not len(self.rows):
            return
        base_ms = self._base_ms()
        rows, self.rows = self.rows, HistoryRows()
        columns: tuple[list[Any], ...] = (
            rows.job_ids, _places(self._names, rows.names), rows.attempts, rows.outcomes,
            offsets(rows.enqueued_ms, base_ms), offsets(rows.ready_ms, base_ms),
            offsets(rows.due_ms, base_ms), offsets(rows.started_us, base_ms * 1_000),
            rows.durations_us, rows.deliveries, rows.backoffs_ms, self._error_places(rows.failures),
        )  # fmt: skip
        self._strips.append(_encode_columns(columns, len(rows)))
        self._encoded_count += len(rows)

    def _usual_columns(
        self, batch: Sequence[Delivery], offset_us: int
    ) -> tuple[list[Any], ...] | None:
        """Those that differ from row to row; None: a time is none that a clock shows."""
        base_ms = self._base_ms((batch[0].started_ns // 1_000 + offset_us) // 1_000)
        # The base by our monotonic clock, so that a start is told from it in one step.
        base_ns = (base_ms * 1_000 - offset_us) * 1_000
        enqueued_ms = [one.created_at_ms - base_ms for one in batch]
        ready_ms = [ms - base_ms for ms in ready_times_ms(batch)]
        latest_ms = TIME_MS_MAX - base_ms
        if max(enqueued_ms) > latest_ms or max(ready_ms) > latest_ms:
            return None
        started_us = [(one.started_ns - base_ns) // 1_000 for one in batch]
        durations_us = [one.duration_us for one in batch]
        return [one.job_id for one in batch], enqueued_ms, ready_ms, started_us, durations_us

    def _base_ms(self, start_ms: int = 0) -> int:
        """The same for the whole entry: by the rows that wait, or without any, the next start."""
        if self._chosen_base_ms is None:
            self._chosen_base_ms = self.rows.base_ms if len(self.rows) else start_ms
        return self._chosen_base_ms

    def _name_elements(self, batch: Sequence[Delivery], names: set[str]) -> bytes:
        if len(names) == 1:
            (place,) = _places(self._names, names)
            return _encode(place) * len(batch)
        (elements,) = _encode_columns(
            (_places(self._names, [one.name for one in batch]),), len(batch)
        )
        return elements

    def _add_usual(self, columns: tuple[list[Any], ...], names: bytes, count: int) -> None:
        job_ids, enqueued_ms, ready_ms, started_us, durations_us = _encode_columns(columns, count)
        zeros, ones, nones = _ZERO * count, _ONE * count, _NONE * count
        strip = (
            job_ids, names, ones, zeros, enqueued_ms, ready_ms, nones, started_us, durations_us,
            ones, zeros, nones,
        )  # fmt: skip
        self._strips.append(strip)
        self._encoded_count += count

    def _error_places(self, failures: list[Failure | None]) -> list[int | None]:
        errors = self._errors
        return [
            None if failure is None else errors.setdefault(failure, len(errors))
            for failure in failures
        ]


def _usual_names(batch: Sequence[Delivery]) -> set[str]:
    """The names, if all jobs are in their first run and had no due time, as most do; else none."""
    found = {
        one.name if one.due_ms is None and not one.spent and not one.earlier else None
        for one in batch
    }
    return set() if None in found else cast("set[str]", found)


def _places(known: dict[str, int], names: Iterable[str]) -> list[int]:
    return [known.setdefault(name, len(known)) for name in names]


def _encode_columns(columns: tuple[list[Any], ...], count: int) -> _Strip:
    """The elements of columns without the heads of their arrays, so that others can follow."""
    head_bytes = len(_array_head(count))
    try:
        return tuple([_encode(column)[head_bytes:] for column in columns])
    except (OverflowError, ValueError) as error:
        raise EncodeError(f"rows of the history must have a MessagePack form: {error}") from error


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


VERSION = 1
ATTEMPTS = "attempts"


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


def encode_history(
    block: HistoryBlock,
    *,
    worker: str,
    run: str,
    seq: int,
    lost: int = 0,
    is_last: bool = False,
) -> list[bytes]:
    """Encode an entry as a flat list of fields and values; no rows at all may still say the end.

    Raises:
        EncodeError: a number does not fit into 64 bits; the rows beside it are no longer there.
    """
    packed = block.pack()
    fields = [b"v", b"%d" % VERSION, b"w", worker.encode(), b"r", run.encode(), b"s", b"%d" % seq]
    if is_last:
        fields += (b"end", b"1")
    fields += (b"t", ATTEMPTS.encode(), b"n", b"%d" % len(block))
    if lost > 0:
        fields += (b"lost", b"%d" % lost)
    fields += (b"b", packed)
    return fields


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


def _number(found: dict[bytes, bytes], field: bytes) -> int:
    number = read_uint(found.get(field))
    if number is None:
        raise DecodeError(f"a history entry must have a number in {field.decode()}")
    return number


def _text(found: dict[bytes, bytes], field: bytes) -> str:
    if field not in found:
        raise DecodeError(f"a history entry must have a field {field.decode()}")
    return read_text(found[field])
