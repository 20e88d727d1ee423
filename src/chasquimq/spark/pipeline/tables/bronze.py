"""Rows of the sources as rows of the bronze tables: Arrow in, Arrow out, a function a table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.columns import LAST_MS, TIMESTAMP, known_ms, moment_of, within
from chasquimq.spark.lake.ledger import Gap, RunPart, id_ms
from chasquimq.spark.lake.table_shape import Table
from chasquimq.spark.lake.tables import BRONZE_ATTEMPTS, BRONZE_EVENTS, BRONZE_GAPS, BRONZE_RUNS
from chasquimq.spark.schema import GAP, UNREADABLE

_DAY_MS: Final = 86_400_000
_MARKERS: Final = pa.array([GAP, UNREADABLE])


def bronze_attempts(rows: pa.RecordBatch, batch_id: int, now_us: int) -> pa.RecordBatch:
    """Attempts, without the markers, and with the day they reached the server."""
    attempts = rows.filter(pc.greater_equal(rows.column("row"), 0))
    # The rows of an entry share its id, so there are few to read.
    ids = attempts.column("stream_id").dictionary_encode()
    times = pa.array([known_ms(id_ms(text)) for text in ids.dictionary.to_pylist()], pa.int64())
    days = _days(times, now_us).take(ids.indices)
    return _stamped(BRONZE_ATTEMPTS, attempts, days, batch_id, now_us)


def bronze_events(rows: pa.RecordBatch, batch_id: int, now_us: int) -> pa.RecordBatch:
    """Events, without the markers, and with the day they reached the server."""
    events = rows.filter(pc.invert(pc.is_in(rows.column("event"), _MARKERS)))
    days = _days(events.column("id_ms"), now_us)
    return _stamped(BRONZE_EVENTS, events, days, batch_id, now_us)


def bronze_gaps(gaps: Iterable[Gap], channel: str, batch_id: int, now: datetime) -> pa.Table:
    """The ledger of losses; each counts for the day on which it was noticed."""
    rows = [
        {
            "queue": gap.queue,
            "channel": channel,
            "worker": gap.worker,
            "after_id": gap.after_id,
            "lost": gap.lost,
            "detected_at": now,
            "cause": gap.cause,
            "unit": gap.unit,
            "detail": gap.detail,
            "event_date": _moment(gap.noticed_id, now).date(),
            "batch_id": batch_id,
        }
        for gap in gaps
    ]
    return pa.Table.from_pylist(rows, BRONZE_GAPS.arrow)


def bronze_runs(parts: Iterable[RunPart], batch_id: int, now: datetime) -> pa.Table:
    """How far the entries of each worker run were read."""
    rows = [
        {
            "queue": part.queue,
            "worker": part.worker,
            "run": part.run,
            "first_seq": part.first_seq,
            "last_seq": part.last_seq,
            "entries": part.entries,
            "attempts": part.attempts,
            "first_at": _moment(part.first_id, now),
            "last_at": _moment(part.last_id, now),
            "is_ended": part.is_ended,
            "event_date": _moment(part.last_id, now).date(),
            "batch_id": batch_id,
        }
        for part in parts
    ]
    return pa.Table.from_pylist(rows, BRONZE_RUNS.arrow)


def _stamped(
    table: Table, rows: pa.RecordBatch, days: pa.Array, batch_id: int, now_us: int
) -> pa.RecordBatch:
    columns: dict[str, Any] = {name: rows.column(name) for name in rows.schema.names}
    columns["event_date"] = days
    columns["batch_id"] = pa.repeat(pa.scalar(batch_id, pa.int64()), rows.num_rows)
    columns["ingested_at"] = pa.repeat(pa.scalar(now_us, TIMESTAMP), rows.num_rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in table.names], schema=table.arrow)


def _days(times_ms: pa.Array, now_us: int) -> pa.Array:
    """The days of entry ids; one that no calendar holds is of the day on which it was read."""
    today = pa.scalar(now_us // 1_000 // _DAY_MS, pa.int64())
    days = pc.fill_null(pc.divide(within(times_ms, 0, LAST_MS), _DAY_MS), today)
    return days.cast(pa.int32()).cast(pa.date32())


def _moment(entry_id: str, now: datetime) -> datetime:
    """When the server took an entry; now, where there was none or no calendar holds it."""
    ms = known_ms(id_ms(entry_id))
    return moment_of(ms) if ms else now
