"""Every table of the lake: its columns in their order and how its rows of one key merge."""

from __future__ import annotations

from typing import Final

from chasquimq.spark.lake.table_shape import ColumnText, Table, table
from chasquimq.spark.schema import ATTEMPT_FACTS, EVENT_FACTS

BRONZE_ATTEMPTS: Final = table(
    "bronze_attempts",
    *ATTEMPT_FACTS,
    ("event_date", "date"),
    ("batch_id", "long"),
    ("ingested_at", "timestamp"),
)
BRONZE_EVENTS: Final = table(
    "bronze_events",
    *EVENT_FACTS,
    ("event_date", "date"),
    ("batch_id", "long"),
    ("ingested_at", "timestamp"),
)
# Starts and failures whose end has not been read yet: what the next batch of events goes on from.
_OPEN_COLUMNS: Final[tuple[ColumnText, ...]] = (
    ("queue", "string"),
    ("job_id", "string"),
    ("id_ms", "long"),
    ("id_seq", "long"),
    ("event", "string"),
    ("ts", "timestamp"),
    ("name", "string"),
    ("attempt", "int"),
    ("duration_us", "long"),
    ("reason", "string"),
    ("fingerprint", "string"),
    ("backoff_ms", "long"),
    ("enq", "timestamp"),
    ("due", "timestamp"),
    ("worker", "string"),
    ("deliveries", "int"),
    ("batch_id", "long"),
    ("event_date", "date"),
)
SILVER_OPEN: Final = table("silver_open", *_OPEN_COLUMNS)
# The same between two steps of a batch: not a table of the lake.
LOOSE_EVENTS: Final = table("loose_events", *_OPEN_COLUMNS)
# The loss ledger. `cause`: sequence, lost, trimmed, reset, unreadable. `lost` counts
# `unit`s, attempts or entries; None: it is not known how many.
BRONZE_GAPS: Final = table(
    "bronze_gaps",
    ("queue", "string"),
    ("channel", "string"),
    ("worker", "string"),
    ("after_id", "string"),
    ("lost", "long"),
    ("detected_at", "timestamp"),
    ("cause", "string"),
    ("unit", "string"),
    ("detail", "string"),
    ("event_date", "date"),
    ("batch_id", "long"),
)
# One row for each worker run and batch: how far its entries were read, and whether it closed.
BRONZE_RUNS: Final = table(
    "bronze_runs",
    ("queue", "string", "key"),
    ("worker", "string", "key"),
    ("run", "string", "key"),
    ("first_seq", "long", "min"),
    ("last_seq", "long", "max"),
    ("entries", "long", "sum"),
    ("attempts", "long", "sum"),
    ("first_at", "timestamp", "min"),
    ("last_at", "timestamp", "max"),
    ("is_ended", "boolean", "max"),
    ("event_date", "date"),
    ("batch_id", "long"),
)
# What events say about attempts, in the words of the history; on its way to gold, and no table of
# the lake either.
FOLDED_ATTEMPTS: Final = table(
    "folded_attempts",
    ("queue", "string"),
    ("worker", "string"),
    ("job_id", "string"),
    ("name", "string"),
    ("attempt", "int"),
    ("outcome", "string"),
    ("enqueued_at", "timestamp"),
    ("ready_at", "timestamp"),
    ("due_at", "timestamp"),
    ("started_at", "timestamp"),
    ("duration_us", "long"),
    ("deliveries", "int"),
    ("backoff_ms", "long"),
    ("error", "string"),
    ("fingerprint", "string"),
    ("event_date", "date"),
)
# `wait_ms` is start minus ready, below zero never: skew is counted by the audit.
SILVER_ATTEMPTS: Final = table(
    "silver_attempts",
    ("queue", "string"),
    ("job_id", "string"),
    ("name", "string"),
    ("attempt", "int"),
    ("started_at", "timestamp"),
    ("ended_at", "timestamp"),
    ("wait_ms", "double"),
    ("duration_us", "long"),
    ("outcome", "string"),
    ("reason", "string"),
    ("fingerprint", "string"),
    ("worker", "string"),
    ("deliveries", "int"),
    ("event_date", "date"),
)
_JOB_COLUMNS: Final[tuple[ColumnText, ...]] = (
    ("queue", "string", "key"),
    ("job_id", "string", "key"),
    ("name", "string", "max"),
    ("enqueued_at", "timestamp", "min"),
    ("first_active_at", "timestamp", "min"),
    ("ended_at", "timestamp", "max"),
    ("attempts", "int", "sum"),
    ("failures", "int", "sum"),
    ("run_us", "long", "sum"),
    ("wait_ms", "double", "sum"),
    ("total_ms", "double", "max"),
    ("status", "string", "last"),
    ("reason", "string", "last"),
    ("fingerprint", "string", "last"),
    ("updated_at", "timestamp", "max"),
    ("event_date", "date"),
)
# Jobs that completed at their first attempt go to `silver_jobs` at once, all others come in parts.
SILVER_JOBS_PARTS: Final = table("silver_jobs_parts", *_JOB_COLUMNS)
SILVER_JOBS: Final = table("silver_jobs", *_JOB_COLUMNS)
# Starts count in the minute of the start, the other figures in the minute of the end.
GOLD_MINUTE: Final = table(
    "gold_minute",
    ("queue", "string", "key"),
    ("name", "string", "key"),
    ("window_start", "timestamp", "key"),
    ("started", "long", "sum"),
    ("completed", "long", "sum"),
    ("failed", "long", "sum"),
    ("retried", "long", "sum"),
    ("dead", "long", "sum"),
    ("run_kll", "binary", "kll"),
    ("wait_kll", "binary", "kll"),
    ("event_date", "date"),
)
GOLD_FAILURES: Final = table(
    "gold_failures",
    ("queue", "string", "key"),
    ("name", "string", "key"),
    ("fingerprint", "string", "key"),
    ("reason", "string", "max"),
    ("window_start", "timestamp", "key"),
    ("failed", "long", "sum"),
    ("dead", "long", "sum"),
    ("run_us", "long", "sum"),
    ("first_seen", "timestamp", "min"),
    ("last_seen", "timestamp", "max"),
    ("event_date", "date"),
)
# The burn rate is the share of breaches over the share that is allowed.
GOLD_SLO: Final = table(
    "gold_slo",
    ("queue", "string", "key"),
    ("name", "string", "key"),
    ("window_start", "timestamp", "key"),
    ("target_ms", "long", "key"),
    ("within", "long", "sum"),
    ("breached", "long", "sum"),
    ("allowed_share", "double", "max"),
    ("burn_rate", "double", "sum(breached) / (sum(within) + sum(breached)) / max(allowed_share)"),
    ("event_date", "date"),
)
GOLD_BACKLOG: Final = table(
    "gold_backlog",
    ("queue", "string"),
    ("sampled_at", "timestamp"),
    ("ready", "long"),
    ("running", "long"),
    ("delayed", "long"),
    ("dlq", "long"),
    ("entries_added", "long"),
    ("arrived", "long"),
    ("finished", "long"),
    ("oldest_ms", "long"),
    ("consumers", "int"),
    ("event_date", "date"),
)
# Rates are jobs a second. `clears_at` None and `never_clears`: it grows or stands still.
GOLD_FORECAST: Final = table(
    "gold_forecast",
    ("queue", "string"),
    ("made_at", "timestamp"),
    ("arrival_rate", "double"),
    ("departure_rate", "double"),
    ("clears_at", "timestamp"),
    ("never_clears", "boolean"),
    ("breach_at", "timestamp"),
    ("workers_needed", "int"),
    ("event_date", "date"),
)
# `wave_at` is the minute into which the retries of these runs fall; the next wave is the largest
# of those that lie ahead. None: the runs that were not retried.
GOLD_RETRIES: Final = table(
    "gold_retries",
    ("queue", "string", "key"),
    ("name", "string", "key"),
    ("attempt", "int", "key"),
    ("wave_at", "timestamp", "key"),
    ("runs", "long", "sum"),
    ("completed", "long", "sum"),
    ("retried", "long", "sum"),
    ("dead", "long", "sum"),
    ("added_delay_ms", "long", "sum"),
    ("run_us", "long", "sum"),
    ("success_share", "double", "sum(completed) / sum(runs)"),
    ("event_date", "date"),
)
# None: the channel cannot know. `*_proven` no gap explains, `*_maybe` a known gap may explain.
GOLD_AUDIT: Final = table(
    "gold_audit",
    ("queue", "string"),
    ("event_date", "date"),
    ("channel", "string"),
    ("audited_at", "timestamp"),
    ("server_finished", "long"),
    ("rows_finished", "long"),
    ("rows_lost", "long"),
    ("entries_lost", "long"),
    ("missing_proven", "long"),
    ("missing_maybe", "long"),
    ("surplus", "long"),
    ("is_settled", "boolean"),
    ("open_runs", "long"),
    ("jobs_with_two_ends", "long"),
    ("ends_after_dlq", "long"),
    ("redeliveries", "long"),
    ("stale", "long"),
    ("unproven", "long"),
    ("skewed_clocks", "long"),
    ("starts_without_end_proven", "long"),
    ("starts_without_end_maybe", "long"),
)

TABLES: Final[dict[str, Table]] = {
    one.name: one
    for one in (
        BRONZE_ATTEMPTS,
        BRONZE_EVENTS,
        BRONZE_GAPS,
        BRONZE_RUNS,
        SILVER_ATTEMPTS,
        SILVER_OPEN,
        SILVER_JOBS_PARTS,
        SILVER_JOBS,
        GOLD_MINUTE,
        GOLD_FAILURES,
        GOLD_SLO,
        GOLD_BACKLOG,
        GOLD_FORECAST,
        GOLD_RETRIES,
        GOLD_AUDIT,
    )
}
