"""Writes the entries of the history stream: collects finished attempts as columns and packs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from chasquimq.errors import EncodeError
from chasquimq.model.delivery import ready_times_ms
from chasquimq.wire.history import ATTEMPTS, VERSION, AttemptOutcome, ErrorNote
from chasquimq.wire.stream_entry import safe_text

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery, Failure, RejectedEntry

ERROR_CHARS_MAX = 512
_ERROR_TYPE_CHARS_MAX = 256
# In the year 5138; clocks and calendars of readers go further, but not by much.
TIME_MS_MAX = 10**14
# The elements of each column that has one a row, in their order on the wire.
_Strip = tuple[bytes, ...]
_COLUMN_COUNT = 12
# Fewer jobs cost less if they wait as rows.
_STRIP_ROWS_MIN = 24
# An array of all columns: those, the base and the two dictionaries.
_ENTRY_HEAD = b"\x9f"
_ZERO, _ONE, _NONE = b"\x00", b"\x01", b"\xc0"
_encode = msgspec.msgpack.Encoder().encode


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


class HistoryBlock:
    """Collects the attempts of one entry; names and errors become dictionaries, times offsets.

    Batches of completed jobs are encoded at once, because objects that wait for an entry to fill
    push those of the next jobs out of the caches. Small batches and others wait as `rows`.
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
        # The base on our monotonic clock, so that one subtraction gives a start.
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


def error_note(failure: Failure) -> ErrorNote:
    """An error as it goes into the dictionary: cut, and always encodable."""
    return ErrorNote(
        safe_text(failure.error_type, _ERROR_TYPE_CHARS_MAX),
        safe_text(failure.message, ERROR_CHARS_MAX),
        failure.fingerprint,
    )


class HistoryRows:
    """Finished attempts of one worker that wait to be packed; each column is a plain list."""

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
        """Add one attempt of any outcome."""
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
