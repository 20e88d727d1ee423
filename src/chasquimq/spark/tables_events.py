"""Events folded into attempts: DataFrame in, DataFrame out.

The events of a job are told in the order of the stream: `active`, then its end, which is
`completed`, or `failed` with what became of it (`retry-scheduled`, `dlq`), or `retry-scheduled`
alone where the handler only asked to come back. What has no end yet stays open for the next batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  its usual name

from chasquimq.spark.table_schemas import FOLDED_ATTEMPTS, SILVER_OPEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ENDS: Final = ("completed", "retry-scheduled", "dlq")
_LIFE: Final = ("active", "failed", *_ENDS)
_CARRIED: Final = (
    "event",
    "ts",
    "attempt",
    "duration_us",
    "reason",
    "fingerprint",
    "worker",
    "name",
)
# Crockford's digits of a ULID, and those that Spark reads numbers of base 32 in.
_ULID: Final = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"
_ULID_DIGITS: Final = ("ABCDEFGHJKMNPQRSTVWXYZ", "abcdefghijklmnopqrstuv")


def fold(events: DataFrame) -> DataFrame:
    """One row for each end, in the columns of attempts of the history.

    Rows without an `outcome` are events that stay open: they are whole in `opened`.
    """
    lives = _in_order(events.where(_has_job() & F.col("event").isin(*_LIFE)))
    told = lives.select("*", *_failure_and_start(), _opened().alias("opened"))
    ended = told.where(_is_end() | F.col("opened").isNotNull()).select(
        "*",
        F.when(_is_end(), _outcome()).alias("outcome"),
        _ran_us().alias("ran_us"),
        F.coalesce("enq", _ulid_moment()).alias("enqueued_at"),
    )
    facts = ended.select("*", _run_number().alias("run"), _started_at().alias("started_at"))
    return facts.select(*_attempt_columns(), "opened")


def rejected_entries(events: DataFrame) -> DataFrame:
    """Entries that could not be read, and so are nobody's attempt, in the same columns."""
    known = {
        "queue": F.col("queue"),
        "worker": F.col("worker"),
        "job_id": F.lit(""),
        "name": F.coalesce("name", F.lit("")),
        "attempt": F.lit(0),
        "outcome": F.lit("rejected"),
        "ready_at": F.col("ts"),
        "duration_us": F.lit(0),
        "deliveries": F.lit(1),
        "backoff_ms": F.lit(0),
        "error": F.col("reason"),
        "event_date": F.col("event_date"),
    }
    picks = [
        known.get(column.name, F.lit(None)).cast(column.kind).alias(column.name)
        for column in FOLDED_ATTEMPTS.columns
    ]
    return events.where(~_has_job() & (F.col("event") == "dlq")).select(*picks)


def _in_order(events: DataFrame) -> DataFrame:
    in_order = Window.partitionBy("queue", "job_id").orderBy("id_ms", "id_seq")
    carried = F.struct(*_CARRIED)
    return events.select(
        "*",
        F.lag(carried, 1).over(in_order).alias("before"),
        F.lag(carried, 2).over(in_order).alias("long_before"),
        F.lead("event", 1).over(in_order).alias("after"),
        F.lead("event", 2).over(in_order).alias("long_after"),
    )


def _attempt_columns() -> list[Column]:
    return [
        F.col("queue"),
        F.coalesce("worker", "start.worker").alias("worker"),
        F.col("job_id"),
        F.coalesce("name", "start.name", F.lit("")).alias("name"),
        F.col("run").alias("attempt"),
        F.col("outcome"),
        F.col("enqueued_at"),
        F.coalesce("due", F.when(F.col("run") <= 1, F.col("enqueued_at"))).alias("ready_at"),
        F.col("due").alias("due_at"),
        F.col("started_at"),
        F.coalesce("ran_us", F.lit(0)).cast("long").alias("duration_us"),
        F.coalesce("deliveries", F.lit(1)).alias("deliveries"),
        F.coalesce("backoff_ms", F.lit(0)).cast("long").alias("backoff_ms"),
        F.coalesce("failure.reason", "reason").alias("error"),
        F.coalesce("failure.fingerprint", "fingerprint").alias("fingerprint"),
        F.col("event_date"),
    ]


def _is_end() -> Column:
    return F.col("event").isin(*_ENDS)


def _opened() -> Column:
    """The event itself, where it is a start or a failure whose end has not come yet."""
    is_last = F.col("after").isNull()
    is_failing = (F.col("after") == "failed") & F.col("long_after").isNull()
    is_open = F.when(F.col("event") == "active", is_last | is_failing).when(
        F.col("event") == "failed", is_last
    )
    return F.when(is_open, F.struct(*SILVER_OPEN.names))


def _failure_and_start() -> list[Column]:
    before, long_before = F.col("before"), F.col("long_before")
    is_failure = (before["event"] == "failed") & F.col("event").isin("retry-scheduled", "dlq")
    start = F.when(before["event"] == "active", before).when(
        is_failure & (long_before["event"] == "active"), long_before
    )
    return [F.when(is_failure, before).alias("failure"), start.alias("start")]


def _outcome() -> Column:
    failed = F.col("failure").isNotNull()
    return (
        F.when(F.col("event") == "completed", F.lit("completed"))
        .when(F.col("event") == "dlq", F.when(failed, F.lit("dead")).otherwise(F.lit("rejected")))
        .otherwise(F.when(failed, F.lit("retried")).otherwise(F.lit("snoozed")))
    )


def _ran_us() -> Column:
    """What the handler's end tells; a snooze tells nothing but that it came."""
    since_start = F.unix_micros("ts") - F.unix_micros("start.ts")
    snoozed_us = F.when(F.col("event") == "retry-scheduled", since_start)
    return F.coalesce("failure.duration_us", "duration_us", snoozed_us)


def _run_number() -> Column:
    """What never ran has the number 0, as in the history."""
    return (
        F.when(F.col("outcome") == "rejected", F.lit(0))
        .when(F.col("outcome") == "snoozed", F.coalesce("start.attempt", F.lit(0)))
        .otherwise(F.coalesce("failure.attempt", "attempt"))
    )


def _started_at() -> Column:
    ended_us = F.unix_micros(F.coalesce("failure.ts", "ts"))
    worked_out = F.timestamp_micros(ended_us - F.col("ran_us"))
    return F.when(F.col("outcome") != "rejected", F.coalesce("start.ts", worked_out))


def _has_job() -> Column:
    return F.coalesce("job_id", F.lit("")) != ""


def _ulid_moment() -> Column:
    """When an id was made that tells it; the ids of others tell nothing."""
    digits = F.translate(F.substring("job_id", 1, 10), *_ULID_DIGITS)
    made_ms = F.conv(digits, 32, 10).cast("long")
    return F.when(F.col("job_id").rlike(_ULID), F.timestamp_millis(made_ms))
