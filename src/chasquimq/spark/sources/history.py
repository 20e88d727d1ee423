"""Offers finished attempts as the data source `chasqui.history`; decodes entries into Arrow."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from chasquimq.errors import DecodeError
from chasquimq.spark.columns import CENTURY_MS, CENTURY_US, known_ms, moments_ms, moments_us
from chasquimq.spark.schema import ATTEMPTS_ARROW, ATTEMPTS_DDL, GAP, MARK, UNREADABLE
from chasquimq.spark.sources.channel import Channel
from chasquimq.spark.sources.options import SourceOptions, parse_options
from chasquimq.spark.sources.source import ChannelStreamReader, batch_reader
from chasquimq.store.inspect.ranges import RawEntry
from chasquimq.wire.history import HistoryColumns, HistoryEntry, decode_history, outcome_label
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import first_values, read_text, read_uint

_MARKER_ROW = -1
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
# Every outcome that fits into a byte has its word here; later ones are made one by one.
_LABELS = pa.array([outcome_label(number) for number in range(256)], pa.string())
# An entry that has rows, with its id.
_Packed = tuple[str, HistoryEntry, HistoryColumns]


class HistorySource(DataSource):
    """`spark.read.format("chasqui.history")`; a wrong option is refused before anything is read."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options, without=("includeExtra",))

    @classmethod
    def name(cls) -> str:
        return "chasqui.history"

    def schema(self) -> str:
        return ATTEMPTS_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(self._options, HISTORY)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's
        return ChannelStreamReader(self._options, HISTORY)


def attempt_batches(queue: str, entries: Sequence[RawEntry]) -> Iterator[pa.RecordBatch]:
    """All rows of the entries; those that cannot be read, or have none, are one marker each."""
    packed: list[_Packed] = []
    markers: list[dict[str, Any]] = []
    for raw_id, fields in entries:
        entry_id = raw_id.decode()
        try:
            entry = decode_history(fields)
        except DecodeError as error:
            markers.append(_unreadable(queue, entry_id, fields, str(error)))
            continue
        if entry.columns:
            packed.append((entry_id, entry, entry.columns))
        else:
            markers.append(_marker(queue, entry_id, entry))
    yield from _row_batches(queue, packed)
    if markers:
        yield pa.RecordBatch.from_pylist(markers, ATTEMPTS_ARROW)


def gap_batch(queue: str, after_id: str, lost: int | None, label: str, why: str) -> pa.RecordBatch:
    """One marker of a loss."""
    gap = {
        "queue": queue, "stream_id": after_id, "row": _MARKER_ROW, "outcome": GAP, "lost": lost,
        "error_class": label, "error": why,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([gap], ATTEMPTS_ARROW)


def _row_batches(queue: str, packed: list[_Packed]) -> Iterator[pa.RecordBatch]:
    if not packed:
        return
    try:
        yield _batch(queue, packed)
    except (pa.ArrowInvalid, OverflowError) as error:
        if len(packed) > 1:
            # One entry has a number beyond its column: alone, it is the only one that is marked.
            for one in packed:
                yield from _row_batches(queue, [one])
            return
        entry_id, entry, _ = packed[0]
        marker = _marker(queue, entry_id, entry) | {"outcome": UNREADABLE, "error": str(error)}
        yield pa.RecordBatch.from_pylist([marker], ATTEMPTS_ARROW)


def _batch(queue: str, packed: list[_Packed]) -> pa.RecordBatch:
    ids, entries, columns = zip(*packed, strict=True)
    spread = _Spread([len(one) for one in columns])
    base_ms = spread(pa.int64(), [known_ms(one.base_ms) for one in columns])
    names = _joined(pa.string(), [one.names for one in columns])
    name_at = spread.indices([one.names for one in columns], [one.name_index for one in columns])
    errors = _flat([one.errors for one in columns])
    error_at = spread.indices([one.errors for one in columns], [one.error_index for one in columns])
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(queue, pa.string()), spread.row_count),
            spread(pa.string(), ids),
            spread(pa.string(), [one.worker for one in entries]),
            spread(pa.string(), [one.run for one in entries]),
            spread(pa.int64(), [one.seq for one in entries]),
            spread.rows,
            _joined(pa.string(), [one.job_ids for one in columns]),
            names.take(name_at),
            _small(pa.int32(), [one.attempts for one in columns]),
            _outcomes([one.outcomes for one in columns]),
            moments_ms(_offsets([one.enqueued_ms for one in columns]), base_ms),
            moments_ms(_offsets([one.ready_ms for one in columns]), base_ms),
            moments_ms(_offsets([one.due_ms for one in columns]), base_ms),
            moments_us(_offsets([one.started_us for one in columns]), base_ms),
            _lasting([one.durations_us for one in columns], CENTURY_US),
            _small(pa.int32(), [one.deliveries for one in columns]),
            _lasting([one.backoffs_ms for one in columns], CENTURY_MS),
            pa.array([one.error_type for one in errors], pa.string()).take(error_at),
            pa.array([one.message for one in errors], pa.string()).take(error_at),
            pa.array([one.fingerprint for one in errors], pa.string()).take(error_at),
            spread.first_only(pa.int32(), [one.row_count for one in entries]),
            spread.first_only(pa.int64(), [one.lost for one in entries]),
            spread.first_only(pa.bool_(), [one.is_last for one in entries]),
        ],
        schema=ATTEMPTS_ARROW,
    )


class _Spread:
    """Values of entries, repeated for each of their rows."""

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = list(accumulate(sizes))
        self.row_count = ends[-1]
        self._ends = pa.array(ends, pa.int32())
        # Numbers from 1 on, less where each entry begins: its rows, counted from 0.
        numbers = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int32()), self.row_count))
        begins = [end - size + 1 for end, size in zip(ends, sizes, strict=True)]
        self.rows = pc.subtract(numbers, self(pa.int32(), begins))

    def __call__(self, kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
        runs = pa.RunEndEncodedArray.from_arrays(self._ends, pa.array(values, kind))
        return pc.run_end_decode(runs)

    def first_only(self, kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
        return pc.if_else(pc.equal(self.rows, 0), self(kind, values), pa.scalar(None, kind))

    def indices(self, dictionaries: Sequence[Sequence[Any]], indices: Sequence[Any]) -> pa.Array:
        """Places in all dictionaries joined, from places in each."""
        sizes = [len(one) for one in dictionaries]
        begins = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
        return pc.add(_small(pa.int32(), indices), self(pa.int32(), begins))


def _flat(columns: Sequence[Sequence[Any]]) -> list[Any]:
    flat: list[Any] = []
    for column in columns:
        flat += column
    return flat


def _joined(kind: pa.DataType, columns: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array(_flat(columns), kind)


def _lasting(columns: Sequence[Sequence[int]], century: int) -> pa.Array:
    """How long something took; sums of it must stay within their column, too."""
    numbers = _joined(pa.int64(), columns)
    edges = pc.min_max(numbers).as_py()
    if numbers and not 0 <= edges["min"] <= edges["max"] <= century:
        raise OverflowError("runs and waits of a history entry must take from 0 to a century")
    return numbers


def _offsets(columns: Sequence[Sequence[int | None]]) -> pa.Array:
    """Times; one that no 64 bits hold came from a producer's broken clock, and is unknown."""
    try:
        return _joined(pa.int64(), columns)
    except OverflowError:
        offsets = _flat(columns)
        known = [at if at is not None and abs(at) <= _INT64_MAX else None for at in offsets]
        return pa.array(known, pa.int64())


def _small(kind: pa.DataType, columns: Sequence[Sequence[Any]]) -> pa.Array:
    """The same for numbers that mostly fit into a byte: a quarter of the time when they do."""
    flat = _flat(columns)
    octets = _octets(flat)
    return pa.array(flat, kind) if octets is None else octets.cast(kind)


def _outcomes(columns: Sequence[Sequence[int]]) -> pa.Array:
    flat = _flat(columns)
    octets = _octets(flat)
    if octets is None:
        return pa.array([outcome_label(number) for number in flat], pa.string())
    return _LABELS.take(octets)


def _octets(flat: list[Any]) -> pa.Array | None:
    try:
        octets = bytes(flat)
    except (TypeError, ValueError):
        return None
    return pa.Array.from_buffers(pa.uint8(), len(octets), [None, pa.py_buffer(octets)])


def _marker(queue: str, entry_id: str, entry: HistoryEntry) -> dict[str, Any]:
    is_known = entry.columns is not None
    why = None if is_known else f"version {entry.version} of {entry.kind!r} is not known here"
    return {
        "queue": queue, "stream_id": entry_id, "worker": entry.worker, "run": entry.run,
        "seq": _fitting(entry.seq, _INT64_MAX), "row": _MARKER_ROW, "error": why,
        "outcome": MARK if is_known else UNREADABLE,
        "entry_rows": _fitting(entry.row_count, _INT32_MAX),
        "lost": _fitting(entry.lost, _INT64_MAX), "is_last": entry.is_last,
    }  # fmt: skip


def _unreadable(queue: str, entry_id: str, fields: Sequence[bytes], why: str) -> dict[str, Any]:
    """What is known of a broken entry: a known run and number keep it from counting as lost."""
    found = first_values(fields)
    return {
        "queue": queue, "stream_id": entry_id, "worker": _text(found, b"w"), "run": _text(found, b"r"),
        "seq": _fitting(read_uint(found.get(b"s")), _INT64_MAX), "row": _MARKER_ROW,
        "outcome": UNREADABLE, "error": why,
        "entry_rows": _fitting(read_uint(found.get(b"n")), _INT32_MAX),
        "lost": _fitting(read_uint(found.get(b"lost")) or 0, _INT64_MAX),
        "is_last": found.get(b"end") == b"1",
    }  # fmt: skip


def _text(found: dict[bytes, bytes], field: bytes) -> str | None:
    return read_text(found[field]) if field in found else None


def _fitting(number: int | None, ceiling: int) -> int | None:
    return number if number is not None and number <= ceiling else None


def _key(queue: str) -> str:
    return QueueKeys(queue).history


def _batches(
    queue: str, entries: Sequence[RawEntry], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    return attempt_batches(queue, entries)


# An entry holds up to 1,000 rows in about 50 kB.
HISTORY = Channel(
    place="history",
    key=_key,
    rows_field="n",
    step_min=1,
    step_max=16,
    unmeasured_max=0,
    to_batches=_batches,
    to_gap=gap_batch,
)
