"""Slices of Arrow as rows that can become jobs; those that cannot are counted by what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from chasquimq.model.backoff import U32_MAX
from chasquimq.settings import ProducerSettings
from chasquimq.spark.queues.layout import Layout
from chasquimq.spark.queues.options import QueueOptions
from chasquimq.spark.queues.values import structs, values
from chasquimq.wire.keys import JOB_ID_BYTES_MAX, JOB_NAME_BYTES_MAX
from chasquimq.wire.new_job import encode_values

_NIL: Final = b"\xc0"
_EMPTY_MAP: Final = b"\x80"
_DELAY_MS_MAX: Final = ProducerSettings().max_delay_secs * 1_000
# Says what is wrong with a value; empty: nothing.
_Judge = Callable[[Any], str]


@dataclass(slots=True)
class Rows:
    """Rows by column; None: there is no such column. `faults` counts rows that were left out."""

    names: list[str]
    payloads: list[bytes]
    ids: list[str] | None = None
    waits_ms: list[int] | None = None
    attempts: list[int | None] | None = None
    faults: dict[str, int] = field(default_factory=dict[str, int])

    def __len__(self) -> int:
        return len(self.payloads)

    def only(self, places: Sequence[int]) -> Rows:
        """The rows of these places."""

        def kept(column: list[Any] | None) -> Any:
            return None if column is None else [column[at] for at in places]

        return Rows(
            kept(self.names), kept(self.payloads), kept(self.ids), kept(self.waits_ms),
            kept(self.attempts),
        )  # fmt: skip

    def pieces(self, bytes_max: int) -> Iterator[Rows]:
        """The same rows in slices of at most so many bytes of payload, or of one row."""
        if sum(map(len, self.payloads)) <= bytes_max:
            yield self
            return
        start = size = 0
        for at, payload in enumerate(self.payloads):
            if at > start and size + len(payload) > bytes_max:
                yield self.only(range(start, at))
                start, size = at, 0
            size += len(payload)
        yield self.only(range(start, len(self)))


class RowReader:
    """Reads slices of one write."""

    def __init__(self, layout: Layout, options: QueueOptions) -> None:
        self._layout = layout
        self._options = options

    def read(self, batch: pa.RecordBatch) -> Rows:
        """The good rows of a slice, in their order."""
        rows = self._columns(batch)
        faults = self._faults(rows, _column(batch, self._layout.corrupt_at))
        if not faults:
            return _settled(rows)
        good = _settled(rows.only([at for at in range(len(rows)) if at not in faults]))
        for what in faults.values():
            good.faults[what] = good.faults.get(what, 0) + 1
        return good

    def _columns(self, batch: pa.RecordBatch) -> Rows:
        layout = self._layout
        names = _column(batch, layout.name_at)
        if names is not None and self._options.allow_unnamed:
            names = [name or "" for name in names]
        payloads = self._payloads(batch)
        assert len(payloads) == batch.num_rows, "every row has one payload"
        return Rows(
            [self._options.name] * batch.num_rows if names is None else names,
            payloads,
            _column(batch, layout.id_at),
            _column(batch, layout.delay_at),
            _column(batch, layout.attempts_at),
        )

    def _payloads(self, batch: pa.RecordBatch) -> list[bytes]:
        at = self._layout.payload_at
        if at is None:
            names = [name for name, _ in self._layout.rest]
            columns = [batch.column(place) for _, place in self._layout.rest]
            return encode_values(structs(names, columns)) or [_EMPTY_MAP] * batch.num_rows
        found = values(batch.column(at))
        if not self._layout.is_raw:
            return encode_values(found)
        return [_NIL if one is None else one for one in found] if None in found else found

    def _faults(self, rows: Rows, corrupt: list[Any] | None) -> dict[int, str]:
        """What is wrong, by row; the first reason counts."""
        faults: dict[int, str] = {}
        if corrupt is not None:
            # All else of such a row is missing, which is no news.
            _note(faults, corrupt, _corrupt_fault)
        if rows.ids is not None and not _are_good_texts(rows.ids, JOB_ID_BYTES_MAX):
            _note(faults, rows.ids, _id_fault)
        if self._layout.name_at is not None and not _are_good_texts(rows.names, JOB_NAME_BYTES_MAX):
            is_allowed = self._options.allow_unnamed
            _note(faults, rows.names, _long_name_fault if is_allowed else _name_fault)
        if max(map(len, rows.payloads), default=0) > self._options.max_payload_bytes:
            _note(faults, rows.payloads, self._payload_fault)
        if rows.waits_ms is not None:
            _note(faults, rows.waits_ms, _wait_fault)
        if rows.attempts is not None:
            _note(faults, rows.attempts, _attempts_fault)
        return faults

    def _payload_fault(self, payload: bytes) -> str:
        most = self._options.max_payload_bytes
        return f"a payload over {most} bytes" if len(payload) > most else ""


def _column(batch: pa.RecordBatch, at: int | None) -> list[Any] | None:
    return None if at is None else batch.column(at).to_pylist()


def _settled(rows: Rows) -> Rows:
    """No wait is a wait of nothing; where no row waits, there is no such column."""
    if rows.waits_ms is not None:
        waits = [wait or 0 for wait in rows.waits_ms]
        rows.waits_ms = waits if any(waits) else None
    return rows


def _are_good_texts(texts: Sequence[Any], bytes_max: int) -> bool:
    """The usual case, at the pace of C; whatever else is looked at one by one."""
    if None in texts:
        return False
    is_short = max(map(len, texts), default=0) <= bytes_max
    return is_short and all(map(str.strip, texts)) and all(map(str.isascii, texts))


def _note(faults: dict[int, str], column: list[Any], judge: _Judge) -> None:
    for at, value in enumerate(column):
        what = judge(value)
        if what:
            faults.setdefault(at, what)


def _corrupt_fault(value: str | None) -> str:
    return "" if value is None else "a corrupt record"


def _id_fault(value: str | None) -> str:
    if value is None:
        return "no id"
    if not value.strip():
        return "a blank id"
    return "an id over 256 bytes" if len(value.encode()) > JOB_ID_BYTES_MAX else ""


def _name_fault(value: str | None) -> str:
    if value is None:
        return "no name"
    return _long_name_fault(value) if value.strip() else "a blank name"


def _long_name_fault(value: str) -> str:
    return "a name over 256 bytes" if len(value.encode()) > JOB_NAME_BYTES_MAX else ""


def _wait_fault(value: int | None) -> str:
    if value is not None and value < 0:
        return "a delay below 0"
    return "a delay over 30 days" if value is not None and value > _DELAY_MS_MAX else ""


def _attempts_fault(value: int | None) -> str:
    is_good = value is None or 1 <= value <= U32_MAX
    return "" if is_good else "attempts that are not at least 1"
