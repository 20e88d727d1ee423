"""Rows of the tables, as few columns of each as a test wants to name."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from chasquimq.spark.lake.tables import TABLES

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
DAY = NOON.date()
_ATTEMPT = {
    "queue": "mail", "stream_id": "1794830400000-0", "worker": "w1", "run": "r1", "seq": 1, "row": 0,
    "job_id": "job-1", "name": "send", "attempt": 1, "outcome": "completed",
    "enqueued_at": NOON - timedelta(milliseconds=30), "ready_at": NOON - timedelta(milliseconds=20),
    "due_at": None, "started_at": NOON, "duration_us": 1_500, "deliveries": 1, "backoff_ms": 0,
    "error_class": None, "error": None, "fingerprint": None, "event_date": DAY, "batch_id": 0,
    "ingested_at": NOON,
}  # fmt: skip


def after(seconds: float) -> datetime:
    """So long after noon."""
    return NOON + timedelta(seconds=seconds)


def attempt(**columns: Any) -> dict[str, Any]:
    """An attempt that completed at once, but for what the test names."""
    return _ATTEMPT | columns


def failure(**columns: Any) -> dict[str, Any]:
    """An attempt that failed and will be run again."""
    told = {"outcome": "retried", "error": "no route", "fingerprint": "f1", "backoff_ms": 1_000}
    return attempt(**told | columns)


def batch(name: str, *rows: dict[str, Any]) -> pa.RecordBatch:
    """Rows of a table; columns that are not named are null."""
    table = TABLES[name]
    full = [dict.fromkeys(table.names) | row for row in rows]
    return pa.RecordBatch.from_pylist(full, schema=table.arrow)


def dated(row: dict[str, Any], day: date) -> dict[str, Any]:
    return row | {"event_date": day}
