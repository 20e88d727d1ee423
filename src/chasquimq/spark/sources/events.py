"""Offers events of any writer as the data source `chasqui.events`; decodes entries into Arrow."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from chasquimq.spark.columns import CENTURY_MS, CENTURY_US, LAST_MS, moments_ms
from chasquimq.spark.schema import EVENTS_ARROW, EVENTS_DDL, GAP, UNREADABLE
from chasquimq.spark.sources.channel import Channel
from chasquimq.spark.sources.options import SourceOptions, parse_options
from chasquimq.spark.sources.source import ChannelStreamReader, batch_reader
from chasquimq.store.inspect.ranges import RawEntry
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import read_text, read_uint

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_NO_EVENT = "an event must have a field e, got none"
# A foreign entry may be of any size; this much is kept to find its writer.
_EXTRA_FIELDS_MAX = 32
_EXTRA_CHARS_MAX = 512
# Field on the wire and column, in three kinds.
_TEXTS = {
    b"e": "event", b"id": "job_id", b"n": "name", b"reason": "reason", b"w": "worker",
    b"ec": "error_class", b"fp": "fingerprint",
}  # fmt: skip
# Numbers also have a ceiling.
_NUMBERS = {
    b"attempt": ("attempt", _INT32_MAX), b"duration_us": ("duration_us", CENTURY_US),
    b"backoff_ms": ("backoff_ms", CENTURY_MS), b"delay_ms": ("delay_ms", CENTURY_MS),
    b"dc": ("deliveries", _INT32_MAX),
}  # fmt: skip
_MOMENTS = {b"ts": "ts", b"enq": "enq", b"due": "due"}


class EventsSource(DataSource):
    """`spark.read.format("chasqui.events")`; a wrong option is refused before anything is read."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "chasqui.events"

    def schema(self) -> str:
        return EVENTS_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(self._options, EVENTS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's
        return ChannelStreamReader(self._options, EVENTS)


def event_batch(queue: str, entries: Sequence[RawEntry], *, with_extra: bool) -> pa.RecordBatch:
    """One row an entry; `with_extra` keeps the fields that have no column."""
    page = _Page(entries)
    page.set_aside_foreign()
    columns = page.columns(queue)
    columns["extra"] = page.extra(with_unknown=with_extra)
    columns["fault"] = page.fault()
    return pa.RecordBatch.from_arrays(
        [
            columns[field.name] if field.name in columns else pa.nulls(len(entries), field.type)
            for field in EVENTS_ARROW
        ],
        schema=EVENTS_ARROW,
    )


def gap_batch(queue: str, after_id: str, lost: int | None, label: str, why: str) -> pa.RecordBatch:
    """One marker of a loss."""
    gap = {
        "queue": queue, "stream_id": after_id, "event": GAP, "reason": why, "fault": label,
        "lost": lost,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([gap], EVENTS_ARROW)


class _Page:
    """Values by field, with None where an entry has none, and what was wrong with which row."""

    def __init__(self, entries: Sequence[RawEntry]) -> None:
        self._entries = entries
        self._values, self._unknown = _by_field(entries)
        self._faults: dict[int, list[str]] = {}
        self._kept: dict[int, dict[str, str]] = {}

    def set_aside_foreign(self) -> None:
        """Entries that say nothing of what happened become markers with all they have."""
        events = self._values[b"e"]
        for at in [at for at, event in enumerate(events) if not event]:
            fields = self._entries[at][1]
            self._faults[at] = [_NO_EVENT]
            for field, value in zip(fields[::2], fields[1::2], strict=True):
                self._keep(at, field, value)
            for values in self._values.values():
                values[at] = None

    def columns(self, queue: str) -> dict[str, pa.Array]:
        """All columns that come straight from a field."""
        raw_ids = [raw_id for raw_id, _ in self._entries]
        ids = pc.split_pattern(pa.array(raw_ids, pa.string()), "-")
        columns = {
            "queue": pa.repeat(pa.scalar(queue, pa.string()), len(raw_ids)),
            "stream_id": pa.array(raw_ids, pa.string()),
            "id_ms": self._id_part(ids, 0),
            "id_seq": self._id_part(ids, 1),
        }
        for field, column in _TEXTS.items():
            columns[column] = self._text(field)
        for field, (column, ceiling) in _NUMBERS.items():
            columns[column] = self._number(field, EVENTS_ARROW.field(column).type, ceiling)
        for field, column in _MOMENTS.items():
            columns[column] = moments_ms(self._number(field, pa.int64(), LAST_MS))
        return self._marked(columns)

    def extra(self, *, with_unknown: bool) -> pa.Array:
        """What has no column, where it is wanted, and the raw text of what could not be read."""
        if with_unknown:
            for at, field, value in self._unknown:
                self._keep(at, field, value)
        kind = EVENTS_ARROW.field("extra").type
        if not self._kept:
            return pa.nulls(len(self._entries), kind)
        maps = [self._kept.get(at) for at in range(len(self._entries))]
        return pa.array([None if one is None else list(one.items()) for one in maps], kind)

    def fault(self) -> pa.Array:
        """What was wrong, by row."""
        if not self._faults:
            return pa.nulls(len(self._entries), pa.string())
        rows = range(len(self._entries))
        return pa.array([", ".join(self._faults.get(at, ())) or None for at in rows], pa.string())

    def _marked(self, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Markers have no job; an event always has one, if only an empty one."""
        is_event = pc.is_valid(columns["event"])
        job_ids = pc.fill_null(columns["job_id"], "")
        columns["job_id"] = pc.if_else(is_event, job_ids, pa.scalar(None, pa.string()))
        columns["event"] = pc.fill_null(columns["event"], UNREADABLE)
        return columns

    def _text(self, field: bytes) -> pa.Array:
        values = self._values[field]
        try:
            return pa.array(values, pa.string())
        except pa.ArrowInvalid:
            return pa.array([self._decoded(at, field, raw) for at, raw in enumerate(values)])

    def _decoded(self, at: int, field: bytes, raw: bytes | None) -> str | None:
        if raw is None:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._fault(at, field)
            return read_text(raw)

    def _number(self, field: bytes, kind: pa.DataType, ceiling: int) -> pa.Array:
        values = self._values[field]
        numbers = _all_numbers(values, kind, ceiling)
        if numbers is not None:
            return numbers
        read = [self._read(at, field, raw, ceiling) for at, raw in enumerate(values)]
        return pa.array(read, kind)

    def _read(self, at: int, field: bytes, raw: bytes | None, ceiling: int) -> int | None:
        if raw is None:
            return None
        number = read_uint(raw)
        if number is None or number > ceiling:
            self._fault(at, field)
            self._keep(at, field, raw)
            return None
        return number

    def _id_part(self, ids: pa.Array, part: int) -> pa.Array:
        texts = pc.list_element(ids, part)
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid:
            # The server's numbers have one bit more than Spark's; only a test uses it.
            numbers = [int(text) for text in texts.to_pylist()]
            return pa.array([one if one <= _INT64_MAX else None for one in numbers], pa.int64())

    def _fault(self, at: int, field: bytes) -> None:
        self._faults.setdefault(at, []).append(field.decode())

    def _keep(self, at: int, field: bytes, value: bytes) -> None:
        kept = self._kept.setdefault(at, {})
        if len(kept) < _EXTRA_FIELDS_MAX:
            kept.setdefault(_cut(field), _cut(value))


def _by_field(
    entries: Sequence[RawEntry],
) -> tuple[dict[bytes, list[Any]], list[tuple[int, bytes, bytes]]]:
    values: dict[bytes, list[Any]] = {
        field: [None] * len(entries) for field in (*_TEXTS, *_NUMBERS, *_MOMENTS)
    }
    unknown: list[tuple[int, bytes, bytes]] = []
    find = values.get
    # The one loop over fields of rows: a dictionary for each row would take four times as long.
    for at, (_, fields) in enumerate(entries):
        pairs = iter(fields)
        for field, value in zip(pairs, pairs, strict=True):
            column = find(field)
            if column is None:
                unknown.append((at, field, value))
            elif column[at] is None:
                column[at] = value
    return values, unknown


def _all_numbers(values: list[Any], kind: pa.DataType, ceiling: int) -> pa.Array | None:
    """The column at once; None: some are no numbers, or too large."""
    try:
        texts = pa.array(values, pa.string())
        if not pc.all(pc.ascii_is_decimal(texts), min_count=0).as_py():
            return None
        numbers = texts.cast(kind)
    except pa.ArrowInvalid:
        return None
    highest = pc.max(numbers).as_py()
    return numbers if highest is None or highest <= ceiling else None


def _cut(raw: bytes) -> str:
    return read_text(raw[: _EXTRA_CHARS_MAX * 4])[:_EXTRA_CHARS_MAX]


def _key(queue: str) -> str:
    return QueueKeys(queue).events


def _batches(
    queue: str, entries: Sequence[RawEntry], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    yield event_batch(queue, entries, with_extra=options.include_extra)


# An entry is one row of about 200 bytes; to measure it costs the server half of what to read it.
EVENTS = Channel(
    place="events",
    key=_key,
    rows_field="",
    step_min=250,
    step_max=1_000,
    unmeasured_max=10_000,
    to_batches=_batches,
    to_gap=gap_batch,
)
