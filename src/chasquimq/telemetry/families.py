"""Defines every metric: its name, kind, labels, unit and meaning."""

from __future__ import annotations

from typing import Literal

import msgspec

FamilyKind = Literal["counter", "gauge", "histogram"]
Unit = Literal["", "seconds", "ms", "jobs", "entries", "transitions", "outcomes", "rows", "loops"]


class Family(msgspec.Struct, frozen=True):
    """A metric; numbers are kept as integers and divided by `per_unit` when shown.

    `bounds` are the buckets of a histogram, in the integers that are kept. `has_twin`: another
    metric says the same in base units; this one keeps the name that ChasquiMQ (Rust) uses.
    """

    name: str
    kind: FamilyKind
    help: str
    labels: tuple[str, ...] = ()
    unit: Unit = ""
    per_unit: int = 1
    bounds: tuple[int, ...] = ()
    has_twin: bool = False


_MS, _S, _MINUTE, _HOUR = 1_000, 1_000_000, 60_000_000, 3_600_000_000
_DURATION_US = (
    50, 100, 250, 500, 1 * _MS, 2_500, 5 * _MS, 10 * _MS, 25 * _MS, 50 * _MS, 100 * _MS,
    250 * _MS, 500 * _MS, 1 * _S, 2_500 * _MS, 5 * _S, 10 * _S, 30 * _S, 1 * _MINUTE, 5 * _MINUTE,
)  # fmt: skip
_WAIT_US = (
    1 * _MS, 2_500, 5 * _MS, 10 * _MS, 25 * _MS, 50 * _MS, 100 * _MS, 250 * _MS, 500 * _MS, 1 * _S,
    2_500 * _MS, 5 * _S, 10 * _S, 30 * _S, 1 * _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 1 * _HOUR,
)  # fmt: skip
_BACKOFF_MS = (
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000,
    3_600_000,
)  # fmt: skip
_BATCH_SIZE = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)

# ── as in ChasquiMQ (Rust) ────────────────────────────────────────────────────────────────────────

PROMOTED = Family(
    "chasquimq_promoter_promoted_total",
    "counter",
    "Jobs that this process moved from the delayed set to the stream.",
    unit="jobs",
)
ZSET_DEPTH = Family(
    "chasquimq_delayed_zset_depth",
    "gauge",
    "Jobs in the delayed set after the last promotion; only from the process that promotes.",
    unit="jobs",
    has_twin=True,
)
OLDEST_LAG_MS = Family(
    "chasquimq_promoter_oldest_pending_lag_ms",
    "gauge",
    "How late the oldest due job is after a promotion, 0 for none; only from the process that promotes.",
    unit="ms",
    has_twin=True,
)
PROMOTER_LOCK_ACQUIRED = Family(
    "chasquimq_promoter_lock_acquired_total",
    "counter",
    "How often this process became the promoter.",
    unit="transitions",
)
PROMOTER_LOCK_LOST = Family(
    "chasquimq_promoter_lock_lost_total",
    "counter",
    "How often this process stopped being the promoter.",
    unit="transitions",
)
BATCH_SIZE = Family(
    "chasquimq_consumer_batch_size",
    "histogram",
    "Entries in one read; reads that brought nothing are left out.",
    unit="entries",
    bounds=_BATCH_SIZE,
)
RECLAIMED = Family(
    "chasquimq_consumer_reclaimed_total",
    "counter",
    "Entries taken over from a worker that died or went silent.",
    unit="entries",
)
DURATION = Family(
    "chasquimq_handler_duration_seconds",
    "histogram",
    "How long a handler ran, waiting included.",
    ("name",),
    unit="seconds",
    per_unit=_S,
    bounds=_DURATION_US,
)
COMPLETED = Family(
    "chasquimq_jobs_completed_total",
    "counter",
    "Runs whose handler returned.",
    ("name",),
    unit="jobs",
)
FAILED = Family(
    "chasquimq_jobs_failed_total",
    "counter",
    "Runs whose handler raised (error) or whose process died (panic).",
    ("kind", "name"),
    unit="jobs",
)
RETRIES = Family(
    "chasquimq_retries_scheduled_total",
    "counter",
    "Jobs that were given another run, whatever the reason.",
    ("name",),
    unit="jobs",
)
BACKOFF = Family(
    "chasquimq_retry_backoff_seconds",
    "histogram",
    "How long a job waits for its next run.",
    ("name",),
    unit="seconds",
    per_unit=1_000,
    bounds=_BACKOFF_MS,
)
DLQ = Family(
    "chasquimq_dlq_routed_total",
    "counter",
    "Jobs that were moved to the DLQ.",
    ("reason", "name"),
    unit="jobs",
)

# ── ours ──────────────────────────────────────────────────────────────────────────────────────────

DEPTH = Family(
    "chasquimq_promoter_depth",
    "gauge",
    "Jobs in the delayed set after the last promotion; only from the process that promotes.",
    unit="jobs",
)
OLDEST_LAG = Family(
    "chasquimq_promoter_oldest_lag_seconds",
    "gauge",
    "How late the oldest due job is after a promotion, 0 for none; only from the process that promotes.",
    unit="seconds",
    per_unit=1_000,
)
SCHEDULER_LOCK_ACQUIRED = Family(
    "chasquimq_scheduler_lock_acquired_total",
    "counter",
    "How often this process became the scheduler of repeatable jobs.",
    unit="transitions",
)
SCHEDULER_LOCK_LOST = Family(
    "chasquimq_scheduler_lock_lost_total",
    "counter",
    "How often this process stopped being the scheduler of repeatable jobs.",
    unit="transitions",
)
SNOOZED = Family(
    "chasquimq_jobs_snoozed_total",
    "counter",
    "Runs whose handler raised RetryLater.",
    ("name",),
    unit="jobs",
)
WAIT = Family(
    "chasquimq_job_wait_seconds",
    "histogram",
    "How long a job was ready before its run began.",
    ("name",),
    unit="seconds",
    per_unit=_S,
    bounds=_WAIT_US,
)
LEASES_LOST = Family(
    "chasquimq_leases_lost_total",
    "counter",
    "Jobs held here that another worker may run.",
    unit="jobs",
)
STALE = Family(
    "chasquimq_stale_outcomes_total",
    "counter",
    "Outcomes that came after another outcome of the same job and changed nothing.",
    unit="outcomes",
)
UNPROVEN = Family(
    "chasquimq_unproven_outcomes_total",
    "counter",
    "Outcomes sent twice because a connection broke; it is not known whether they counted.",
    unit="outcomes",
)
EVENTS_DROPPED = Family(
    "chasquimq_events_dropped_total",
    "counter",
    "Events that were dropped and not written to the events stream.",
    unit="rows",
)
EVENTS_UNPROVEN = Family(
    "chasquimq_events_unproven_total",
    "counter",
    "Events that may be missing: the connection broke before they were confirmed.",
    unit="rows",
)
HISTORY_DROPPED = Family(
    "chasquimq_history_rows_dropped_total",
    "counter",
    "Rows of the history that were dropped and not written.",
    unit="rows",
)
GROUP_RECREATED = Family(
    "chasquimq_group_recreated_total",
    "counter",
    "How often the worker found its consumer group deleted and created it again.",
    unit="transitions",
)
CONSUMING = Family(
    "chasquimq_worker_consuming",
    "gauge",
    "1 while the worker reads and runs jobs, else 0.",
)
LEASES_TRUSTED = Family(
    "chasquimq_worker_leases_trusted",
    "gauge",
    "1 while leases are renewed in time; at 0 nothing new is started.",
)
LOOPS_DOWN = Family(
    "chasquimq_worker_loops_down",
    "gauge",
    "Loops of the worker that have been failing for more than five seconds.",
    unit="loops",
)
WAITING = Family(
    "chasquimq_worker_jobs_waiting",
    "gauge",
    "Jobs that the worker holds and has not started.",
    unit="jobs",
)
RUNNING = Family(
    "chasquimq_worker_jobs_running",
    "gauge",
    "Jobs whose handlers are running.",
    unit="jobs",
)
UNCONFIRMED = Family(
    "chasquimq_worker_outcomes_unconfirmed",
    "gauge",
    "Outcomes that the server has not confirmed yet.",
    unit="outcomes",
)
LAST_READ_AGE = Family(
    "chasquimq_worker_last_read_age_seconds",
    "gauge",
    "How long ago the last read ended.",
    unit="seconds",
    per_unit=1_000,
)
LEASE_BEAT_AGE = Family(
    "chasquimq_worker_lease_beat_age_seconds",
    "gauge",
    "How long ago the leases of held jobs were last renewed.",
    unit="seconds",
    per_unit=1_000,
)
STALLED = Family(
    "chasquimq_worker_stalled",
    "gauge",
    "1 while jobs wait in the worker, room to run them is free, and nothing starts; else 0.",
)
OLDEST_WAITING_AGE = Family(
    "chasquimq_worker_oldest_waiting_age_seconds",
    "gauge",
    "How long the oldest job that the worker holds has waited for its start, 0 for none.",
    unit="seconds",
    per_unit=1_000,
)

FAMILIES = tuple(family for family in list(globals().values()) if isinstance(family, Family))
