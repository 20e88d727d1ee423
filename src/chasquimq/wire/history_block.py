"""The rows of one history entry, spelled batch by batch: what is spelled is only bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from chasquimq.errors import EncodeError
from chasquimq.model.delivery import ready_times_ms
from chasquimq.wire.history_columns import ErrorNote, error_note
from chasquimq.wire.history_rows import TIME_MS_MAX, HistoryRows, offsets

if TYPE_CHECKING:
    from chasquimq.model.delivery import Delivery
    from chasquimq.model.verdict import Failure

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

    Jobs that are done are spelled as they come, because objects that wait for an entry to fill
    push those of the next jobs out of the caches. Others, and a few, wait as `rows` until then.
    """

    def __init__(self) -> None:
        self.rows = HistoryRows()
        self._chosen_base_ms: int | None = None
        self._names: dict[str, int] = {}
        self._errors: dict[Failure, int] = {}
        self._strips: list[_Strip] = []
        self._spelled_count = 0

    def __len__(self) -> int:
        return self._spelled_count + len(self.rows)

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
        self._spell_rows()
        self._add_usual(columns, self._name_elements(batch, names), len(batch))

    def pack(self) -> bytes:
        """The columns as one MessagePack array.

        Raises:
            EncodeError: a count does not fit into 64 bits; the rows that waited are gone, and what
                was spelled before can be packed.
        """
        self._spell_rows()
        strips = zip(*self._strips, strict=True) if self._strips else [()] * _COLUMN_COUNT
        head = _array_head(self._spelled_count)
        job_ids, *numbers, error_index = [head + b"".join(pieces) for pieces in strips]
        errors: list[ErrorNote] = [error_note(one) for one in self._errors]
        base, names = _encode(self._chosen_base_ms or 0), _encode(list(self._names))
        parts = (_ENTRY_HEAD, base, job_ids, names, *numbers, _encode(errors), error_index)
        return b"".join(parts)

    def _spell_rows(self) -> None:
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
        self._strips.append(_spell(columns, len(rows)))
        self._spelled_count += len(rows)

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
        (elements,) = _spell((_places(self._names, [one.name for one in batch]),), len(batch))
        return elements

    def _add_usual(self, columns: tuple[list[Any], ...], names: bytes, count: int) -> None:
        job_ids, enqueued_ms, ready_ms, started_us, durations_us = _spell(columns, count)
        zeros, ones, nones = _ZERO * count, _ONE * count, _NONE * count
        strip = (
            job_ids, names, ones, zeros, enqueued_ms, ready_ms, nones, started_us, durations_us,
            ones, zeros, nones,
        )  # fmt: skip
        self._strips.append(strip)
        self._spelled_count += count

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


def _spell(columns: tuple[list[Any], ...], count: int) -> _Strip:
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
