"""Reads a queue as DataFrames: plans the parts, and decodes entries into Arrow batches."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from chasquimq.errors import DecodeError
from chasquimq.model.json_value import json_value
from chasquimq.spark.columns import known_ms
from chasquimq.spark.queues.options import Place, QueueOptions
from chasquimq.spark.sources.planning import ReadTask, StreamRange, share_out
from chasquimq.store.inspect.pages import RawMember
from chasquimq.store.inspect.ranges import (
    HIGHEST,
    LOWEST,
    NO_ENTRY,
    KeptResult,
    QueueReadStore,
    RawEntry,
)
from chasquimq.wire.envelope import Envelope, decode_envelope
from chasquimq.wire.outcome import decode_outcome
from chasquimq.wire.payload import decode_payload
from chasquimq.wire.stream_entry import decode_dlq, read_fields, split_member

_ROWS_PER_BATCH = 10_000
_BYTES_PER_BATCH = 8 * 1024 * 1024
# Pieces that a task is put together from: the more, the more even, and the more questions.
_PIECES_PER_TASK = 8
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
UNREADABLE_JOB: Final = "envelope: not a job of this wire"
UNREADABLE_PAYLOAD = "payload: not one MessagePack value"
MISFIT = "payload: does not fit its schema"
# How bytes, NaN, infinities and moments begin inside a value; without these there are none.
_ODD_MARKS = re.compile(
    rb"[\xc4-\xc6]|\xca[\x7f\xff][\x80-\xff]|\xcb[\x7f\xff][\xf0-\xff]"
    rb"|\xd6\xff|\xd7\xff|\xc7\x0c\xff"
)
# A column, and what is wrong with each of its cells ("": nothing).
Cells = tuple["pa.Array[Any]", list[str]]


class ScoreRange(InputPartition):
    """Delayed jobs whose scores lie between two; the bounds are as ZRANGEBYSCORE takes them."""

    def __init__(self, low: str, high: str) -> None:
        super().__init__((low, high))


class Walk(InputPartition):
    """Everything, by one walk."""

    def __init__(self) -> None:
        super().__init__(None)


class QueueReader(DataSourceReader):
    """Reads what is in a queue now; what leaves while it is read may be missing, nothing is twice."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        store = self._open()
        try:
            return self._plan(store)
        finally:
            store.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        store = self._open()
        is_json = not self._options.payload_schema
        maker = BatchMaker(
            self._options.queue, self._options.read, self._schema, is_json=is_json
        )  # fmt: skip
        try:
            for page in _gathered(self._pages(store, partition)):
                yield maker.batch(page)
        finally:
            store.close()

    def _plan(self, store: QueueReadStore) -> Sequence[InputPartition]:
        place, task_count = self._options.read, self._options.min_partitions
        if place == "results":
            return [Walk()]
        if place == "delayed":
            edges = store.score_edges(task_count)
            lows, highs = [LOWEST, *edges], [*[f"({edge}" for edge in edges], HIGHEST]
            return [ScoreRange(low, high) for low, high in zip(lows, highs, strict=True)]
        pieces = _pieces(self._options.queue, store, self._key(store), task_count)
        return list(share_out(pieces, task_count)) if pieces else []

    def _pages(self, store: QueueReadStore, part: InputPartition) -> Iterator[Sequence[Any]]:
        count = self._options.fetch_size
        if isinstance(part, ReadTask):
            for one in part.ranges:
                yield from store.pages(self._key(store), one.after_id, one.until_id, count)
        elif isinstance(part, ScoreRange):
            low, high = part.value
            yield from store.delayed(low, high, count)
        elif isinstance(part, Walk):
            yield from store.results()
        # Where there is nothing to read, Spark asks nevertheless, with a partition of its own.

    def _key(self, store: QueueReadStore) -> str:
        return store.keys.dlq if self._options.read == "dlq" else store.keys.stream

    def _open(self) -> QueueReadStore:
        return QueueReadStore(self._options.queue, self._options.connection)


def _pieces(queue: str, store: QueueReadStore, key: str, task_count: int) -> list[StreamRange]:
    pieces: list[StreamRange] = []
    after_id = NO_ENTRY
    for part in store.stretches(key, task_count * _PIECES_PER_TASK):
        pieces.append(
            StreamRange(
                queue=queue, after_id=after_id, until_id=part.last_id,
                entry_count=part.entry_count, row_count=part.row_count,
            )
        )  # fmt: skip
        after_id = part.last_id
    return pieces


def _gathered(pages: Iterator[Sequence[Any]]) -> Iterator[list[Any]]:
    """Pages as long lists: a batch costs Spark about the same whatever its size."""
    gathered: list[Any] = []
    size_bytes = 0
    for page in pages:
        gathered += page
        size_bytes += sum(map(_bytes_of, page))
        if len(gathered) >= _ROWS_PER_BATCH or size_bytes >= _BYTES_PER_BATCH:
            yield gathered
            gathered, size_bytes = [], 0
    if gathered:
        yield gathered


def _bytes_of(one: RawEntry | RawMember | KeptResult) -> int:
    if isinstance(one, KeptResult):
        return len(one.result or b"")
    # An entry has its bytes in its fields, a member is bytes by itself.
    head, rest = one[0], one[1]
    return len(head) + (len(rest) if isinstance(rest, bytes) else sum(map(len, rest)))


Row = dict[str, Any]


class BatchMaker:
    """Makes batches of one read."""

    def __init__(self, queue: str, place: Place, schema: pa.Schema, *, is_json: bool) -> None:
        self._queue = queue
        self._read_row: Callable[[Any], Row] = _READERS[place]
        self._schema = schema
        self._is_json = is_json
        self._body = "result" if place == "results" else "payload"

    def batch(self, found: Sequence[RawEntry | RawMember | KeptResult]) -> pa.RecordBatch:
        """One row for each; what cannot be read says so in `fault`."""
        rows = [self._read_row(one) for one in found]
        bodies = [row.get(self._body) for row in rows]
        kind = self._schema.field(self._body).type
        column, faults = cells(bodies, kind, is_json=self._is_json)
        for row, fault in zip(rows, faults, strict=True):
            row["queue"] = self._queue
            row["fault"] = row.get("fault") or fault or None
        columns = [
            column if field.name == self._body else _column(rows, field) for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _column(rows: list[Row], field: pa.Field[Any]) -> pa.Array[Any]:
    values = [row.get(field.name) for row in rows]
    if not pa.types.is_timestamp(field.type):
        return pa.array(values, field.type)
    micros = [None if ms is None or known_ms(ms) is None else ms * 1_000 for ms in values]
    return pa.array(micros, pa.int64()).cast(field.type)


def _ready(entry: RawEntry) -> Row:
    entry_id = entry[0].decode()
    fields = read_fields(list(entry[1]))
    row = _job(fields.payload or b"")
    row |= {"entry_id": entry_id, "ready_at": _entry_ms(entry_id), "due_at": fields.due_ms}
    return row | {"name": fields.name}


def _delayed(scored: RawMember) -> Row:
    member, score = scored
    due_ms = float(score)
    due = {"due_at": int(due_ms) if math.isfinite(due_ms) else None}
    try:
        name, envelope = split_member(member)
    except DecodeError:
        return {"fault": UNREADABLE_JOB} | due
    return _job(envelope) | {"name": name} | due


def _dead(entry: RawEntry) -> Row:
    dead = decode_dlq(entry[0], list(entry[1]))
    attempt = dead.attempt
    return _job(dead.payload) | {
        "entry_id": dead.entry_id,
        "name": dead.name,
        "source_id": dead.source_id or None,
        "reason": dead.reason or None,
        "detail": dead.detail,
        "error": dead.error or None,
        "fingerprint": dead.fingerprint or None,
        "traceback": dead.traceback_text or None,
        "failed_at": dead.failed_at_ms,
        "buried_at": _entry_ms(dead.entry_id),
        **({} if attempt is None else {"attempt": min(attempt, _INT_MAX)}),
    }


def _finished(kept: KeptResult) -> Row:
    row: Row = {"job_id": kept.job_id, "result": kept.result, "status": None}
    row["ttl_ms"] = kept.ttl_ms if kept.ttl_ms >= 0 else None
    if kept.outcome is None:
        # ChasquiMQ (Rust) keeps results of completed jobs, and no outcome.
        return row | {"status": "completed"}
    try:
        outcome = decode_outcome(kept.outcome)
    except DecodeError:
        return row | {"fault": "outcome: not of this wire"}
    return row | {
        "status": outcome.status, "reason": outcome.reason or None, "error": outcome.error or None,
    }  # fmt: skip


def _job(raw: bytes) -> Row:
    try:
        job: Envelope = decode_envelope(raw)
    except DecodeError:
        return {"fault": UNREADABLE_JOB}
    most = job.retry.max_attempts if job.retry else None
    return {
        "job_id": job.id,
        "payload": job.payload,
        "attempt": min(job.attempt, _INT_MAX),
        "max_attempts": most,
        "enqueued_at": job.created_at_ms if job.created_at_ms <= _LONG_MAX else None,
    }


def _entry_ms(entry_id: str) -> int | None:
    text = entry_id.partition("-")[0]
    return int(text) if text.isdigit() else None


_READERS: Final[dict[Place, Callable[[Any], Row]]] = {
    "stream": _ready,
    "delayed": _delayed,
    "dlq": _dead,
    "results": _finished,
}


def cells(bodies: Sequence[bytes | None], kind: pa.DataType, *, is_json: bool) -> Cells:
    """The bodies as a column of that type."""
    if pa.types.is_binary(kind):
        return pa.array(bodies, kind), [""] * len(bodies)
    found, faults = _decoded(bodies, is_json=is_json)
    try:
        return pa.array(found, kind), faults
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # One cell does not fit; alone, it is the only one that is empty.
        return _one_by_one(found, faults, kind)


def _decoded(bodies: Sequence[bytes | None], *, is_json: bool) -> tuple[list[Any], list[str]]:
    found: list[Any] = []
    faults: list[str] = []
    for body in bodies:
        value, fault = _value(body, is_json=is_json)
        found.append(value)
        faults.append(fault)
    return found, faults


def _value(body: bytes | None, *, is_json: bool) -> tuple[Any, str]:
    if body is None:
        return None, ""
    try:
        value = decode_payload(body)
    except DecodeError:
        return None, UNREADABLE_PAYLOAD
    return (json_text(value, body) if is_json else value), ""


def json_text(value: Any, body: bytes) -> str:
    """A value as JSON; bytes become {"$base64": …}, as the commands show them."""
    if _ODD_MARKS.search(body) is None:
        try:
            return _plain_json(value)
        except (TypeError, ValueError):
            # Keys that JSON has not.
            pass
    return _plain_json(json_value(value))


def _plain_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _one_by_one(found: Sequence[Any], faults: list[str], kind: pa.DataType) -> Cells:
    kept: list[Any] = []
    for at, value in enumerate(found):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            faults[at] = MISFIT
            kept.append(None)
        else:
            kept.append(value)
    return pa.array(kept, kind), faults
