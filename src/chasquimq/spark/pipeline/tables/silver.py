"""Attempts as rows of the silver tables: Arrow in, Arrow out.

They run where the attempts are decoded or read, batch by batch, in C++: through rows of the JVM the
same tables cost half as much again (see `benchmarks/pipeline_throughput.py`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.columns import TIMESTAMP, has_text, micros, where
from chasquimq.spark.lake.table_shape import Table
from chasquimq.spark.lake.tables import SILVER_ATTEMPTS, SILVER_JOBS
from chasquimq.wire.history import AttemptOutcome

# What an attempt makes of its job. The others say nothing: they did not count, or perhaps not.
_STATUS: Final = {
    AttemptOutcome.COMPLETED.label: "completed",
    AttemptOutcome.DEAD.label: "dead",
    AttemptOutcome.REJECTED.label: "dead",
    AttemptOutcome.RETRIED.label: "retrying",
    AttemptOutcome.SNOOZED.label: "retrying",
}
_FAILED: Final = pa.array([AttemptOutcome.RETRIED.label, AttemptOutcome.DEAD.label])
_ENDED: Final = pa.array(["completed", "dead"])
_WAITING: Final = pa.array(["waiting", "delayed"])
# A promoter may report that a job waits when it runs already: it must not look like the last word.
_REPORTED_LATE_US: Final = 1_000_000
_LABELS: Final = pa.array(list(_STATUS))
_STATUSES: Final = pa.array(list(_STATUS.values()))


class SilverRows(NamedTuple):
    """Rows of the silver tables that a batch of attempts makes.

    `jobs` are whole: done at the first attempt. `parts` are what single attempts say of the others.
    """

    attempts: pa.RecordBatch
    jobs: pa.RecordBatch
    parts: pa.RecordBatch


def silver_rows(attempts: pa.RecordBatch) -> SilverRows:
    """All that silver keeps of attempts; they need the columns of bronze that it is made of."""
    times = _times(attempts)
    jobs = _jobs(attempts, times)
    is_whole = pc.and_(
        pc.equal(attempts.column("attempt"), 1), pc.equal(attempts.column("outcome"), "completed")
    )
    # Entries that were no jobs have no id; they are attempts, but of no job.
    is_part = pc.and_(pc.invert(is_whole), pc.not_equal(attempts.column("job_id"), ""))
    return SilverRows(_attempts(attempts, times), jobs.filter(is_whole), jobs.filter(is_part))


def waiting_parts(events: pa.RecordBatch) -> pa.RecordBatch:
    """Jobs that events know to wait, as parts of their jobs."""
    is_waiting = pc.is_in(events.column("event"), _WAITING)
    waits = events.filter(pc.and_(is_waiting, has_text(events, "job_id")))
    reported_us = pc.subtract(waits.column("ts").cast(pa.int64()), _REPORTED_LATE_US)
    return _live_parts(waits, "waiting", None, reported_us.cast(TIMESTAMP))


def active_parts(opened: pa.RecordBatch, batch_id: int | None = None) -> pa.RecordBatch:
    """Jobs that events of this batch, or of any, know to run, as parts of their jobs."""
    starts = opened.filter(pc.equal(opened.column("event"), "active"))
    if batch_id is not None:
        starts = starts.filter(pc.equal(starts.column("batch_id"), batch_id))
    return _live_parts(starts, "active", starts.column("ts"), starts.column("ts"))


def _live_parts(
    events: pa.RecordBatch, status: str, active_at: pa.Array | None, updated_at: pa.Array
) -> pa.RecordBatch:
    none = pa.repeat(pa.scalar(0, pa.int32()), events.num_rows)
    known: dict[str, Any] = {
        "queue": events.column("queue"),
        "job_id": events.column("job_id"),
        "name": events.column("name"),
        "enqueued_at": events.column("enq"),
        "first_active_at": active_at,
        "attempts": none,
        "failures": none,
        "run_us": none.cast(pa.int64()),
        "status": pa.repeat(pa.scalar(status), events.num_rows),
        "updated_at": updated_at,
        "event_date": events.column("event_date"),
    }
    columns = {
        column.name: _or_nulls(known.get(column.name), events.num_rows, column.arrow.type)
        for column in SILVER_JOBS.columns
    }
    return _rows(SILVER_JOBS, columns)


class _Times(NamedTuple):
    """Columns that follow from others; an attempt without a start ended when it arrived."""

    ended_at: pa.Array
    wait_ms: pa.Array
    total_ms: pa.Array


def _times(attempts: pa.RecordBatch) -> _Times:
    started_us, ready_us = micros(attempts, "started_at"), micros(attempts, "ready_at")
    ended_us = pc.coalesce(pc.add(started_us, attempts.column("duration_us")), ready_us)
    return _Times(
        ended_at=ended_us.cast(TIMESTAMP),
        wait_ms=_ms_between(ready_us, started_us),
        total_ms=_ms_between(micros(attempts, "enqueued_at"), ended_us),
    )


def _attempts(attempts: pa.RecordBatch, times: _Times) -> pa.RecordBatch:
    known = {name: attempts.column(name) for name in attempts.schema.names}
    added = {"ended_at": times.ended_at, "wait_ms": times.wait_ms, "reason": known["error"]}
    return _rows(SILVER_ATTEMPTS, {**known, **added})


def _jobs(attempts: pa.RecordBatch, times: _Times) -> pa.RecordBatch:
    outcome = attempts.column("outcome")
    status = _STATUSES.take(pc.index_in(outcome, _LABELS))
    has_ended = pc.is_in(status, _ENDED)
    ran = pc.greater(attempts.column("attempt"), 0)
    known = {name: attempts.column(name) for name in attempts.schema.names}
    added = {
        "first_active_at": known["started_at"],
        "ended_at": where(has_ended, times.ended_at),
        "attempts": ran.cast(pa.int32()),
        "failures": pc.and_(ran, pc.is_in(outcome, _FAILED)).cast(pa.int32()),
        "run_us": known["duration_us"],
        "wait_ms": times.wait_ms,
        "total_ms": where(has_ended, times.total_ms),
        "status": status,
        "reason": known["error"],
        "updated_at": times.ended_at,
    }
    return _rows(SILVER_JOBS, {**known, **added})


def _rows(table: Table, columns: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in table.names], schema=table.arrow)


def _ms_between(since_us: pa.Array, until_us: pa.Array) -> pa.Array:
    """Never below zero: clocks of two machines may disagree, and the audit counts where they do."""
    passed_us = pc.max_element_wise(pc.subtract(until_us, since_us), 0, skip_nulls=False)
    return pc.divide(passed_us.cast(pa.float64()), 1_000.0)


def _or_nulls(column: pa.Array | None, row_count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(row_count, kind) if column is None else column
