"""Entries and members of a queue as Arrow batches, in the columns of `shapes`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from chasquimq.errors import DecodeError
from chasquimq.spark.columns import known_ms
from chasquimq.spark.queues.bodies import cells
from chasquimq.spark.queues.options import Place
from chasquimq.store.inspect.pages import RawMember
from chasquimq.store.inspect.ranges import KeptResult, RawEntry
from chasquimq.wire.envelope import Envelope, decode_envelope
from chasquimq.wire.outcome import decode_outcome
from chasquimq.wire.stream_entry import decode_dlq, read_fields, split_member

Row = dict[str, Any]
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
UNREADABLE: Final = "envelope: not a job of this wire"


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
        return {"fault": UNREADABLE} | due
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
        # The original keeps results of completed jobs, and no outcome.
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
        return {"fault": UNREADABLE}
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
