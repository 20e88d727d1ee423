"""Attempts as rows of the gold tables: DataFrame in, DataFrame out, a function a table.

They yield parts: what this batch adds to each key. Minutes are of the server's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  its usual name

from chasquimq.spark.lake.tables import GOLD_FAILURES, GOLD_MINUTE, GOLD_RETRIES, GOLD_SLO
from chasquimq.spark.pipeline.targets import ANY_NAME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MINUTE_US: Final = 60_000_000


def gold_minute(attempts: DataFrame) -> DataFrame:
    """How many started and ended in each minute, and sketches of how long they ran and waited."""
    cells = attempts.groupBy(
        "queue",
        "name",
        "event_date",
        _minute(_started_us()).alias("start_minute"),
        _minute(_ended_us()).alias("end_minute"),
    ).agg(
        F.count_if(_ran()).alias("started"),
        F.count_if(_is("completed")).alias("completed"),
        F.count_if(_failed()).alias("failed"),
        F.count_if(_is("retried")).alias("retried"),
        F.count_if(_is("dead", "rejected")).alias("dead"),
        F.kll_sketch_agg_double(_run_ms()).alias("run_kll"),
        F.kll_sketch_agg_double(_wait_ms()).alias("wait_kll"),
    )
    window = F.explode(_start_and_end()).alias("window")
    rows = cells.select("queue", "name", "event_date", window).select("*", "window.*")
    at = _moment(F.col("minute")).alias("window_start")
    return rows.where(F.col("minute").isNotNull()).select("*", at).select(*GOLD_MINUTE.names)


def gold_failures(attempts: DataFrame) -> DataFrame:
    """What failed, by the fingerprint of its error."""
    ended_at = F.timestamp_micros(_ended_us())
    cells = (
        attempts.where(_is("retried", "dead", "rejected"))
        .groupBy(
            "queue",
            "name",
            "event_date",
            F.coalesce("fingerprint", F.lit("")).alias("fingerprint"),
            _minute(_ended_us()).alias("minute"),
        )
        .agg(
            F.max("error").alias("reason"),
            F.count_if(_failed()).alias("failed"),
            F.count_if(_is("dead", "rejected")).alias("dead"),
            F.try_sum("duration_us").alias("run_us"),
            F.min(ended_at).alias("first_seen"),
            F.max(ended_at).alias("last_seen"),
        )
    )
    return cells.withColumn("window_start", _moment(F.col("minute"))).select(*GOLD_FAILURES.names)


def gold_slo(attempts: DataFrame, targets_ms: Mapping[str, int], allowed_share: float) -> DataFrame:
    """How many jobs of the names with a target were done in time; a job that died was not."""
    target_ms = F.coalesce(*_targets(targets_ms)).cast("long")
    took_us = _ended_us() - F.unix_micros(_due_at())
    is_within = _is("completed") & (took_us <= F.col("target_ms") * 1_000)
    cells = (
        attempts.where(_is("completed", "dead", "rejected"))
        .withColumn("target_ms", target_ms)
        .where(F.col("target_ms").isNotNull() & took_us.isNotNull())
        .groupBy("queue", "name", "event_date", "target_ms", _minute(_ended_us()).alias("minute"))
        .agg(F.count_if(is_within).alias("within"), F.count_if(~is_within).alias("breached"))
    )
    share = F.col("breached") / (F.col("within") + F.col("breached"))
    return cells.select(
        "*",
        _moment(F.col("minute")).alias("window_start"),
        F.lit(allowed_share).alias("allowed_share"),
        (share / allowed_share).alias("burn_rate"),
    ).select(*GOLD_SLO.names)


def gold_retries(attempts: DataFrame) -> DataFrame:
    """What each attempt of a name was worth, and when the retries it asked for come back."""
    wave_us = _ended_us() + F.col("backoff_ms") * 1_000
    cells = (
        attempts.where(_ran())
        .groupBy(
            "queue",
            "name",
            "attempt",
            "event_date",
            F.when(_is("retried"), _minute(wave_us)).alias("minute"),
        )
        .agg(
            F.count("*").alias("runs"),
            F.count_if(_is("completed")).alias("completed"),
            F.count_if(_is("retried")).alias("retried"),
            F.count_if(_is("dead")).alias("dead"),
            # Many centuries are unknown, and stop no pipeline.
            F.try_sum("backoff_ms").alias("added_delay_ms"),
            F.try_sum("duration_us").alias("run_us"),
        )
    )
    return cells.select(
        "*",
        _moment(F.col("minute")).alias("wave_at"),
        (F.col("completed") / F.col("runs")).alias("success_share"),
    ).select(*GOLD_RETRIES.names)


def _start_and_end() -> Column:
    """Starts count where they were, all else where it ended; mostly that is the same minute."""
    figures = ["completed", "failed", "retried", "dead"]
    nothing = [F.lit(0).cast("long").alias(name) for name in figures]
    no_sketch = [F.lit(None).cast("binary").alias(name) for name in ("run_kll", "wait_kll")]
    ended = [*figures, "run_kll", "wait_kll"]
    start = F.struct(F.col("start_minute").alias("minute"), "started", *nothing, *no_sketch)
    end = F.struct(
        F.col("end_minute").alias("minute"), F.lit(0).cast("long").alias("started"), *ended
    )
    both = F.struct(F.col("end_minute").alias("minute"), "started", *ended)
    is_same = F.col("start_minute") == F.col("end_minute")
    return F.when(is_same, F.array(both)).otherwise(F.array(start, end))


def _targets(targets_ms: Mapping[str, int]) -> list[Column]:
    # By target, not by name: a plan of thousands of branches would take longer than its rows.
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, target_ms in targets_ms.items():
        if name != ANY_NAME:
            names[target_ms].append(name)
    named = [F.when(F.col("name").isin(some), F.lit(ms)) for ms, some in names.items()]
    return [*named, F.lit(targets_ms.get(ANY_NAME)).cast("long")]


def _due_at() -> Column:
    """Since when a job could have been done; at a retry, since it was added."""
    is_first = F.col("attempt") <= 1
    first = F.coalesce("due_at", "ready_at", "enqueued_at")
    return F.when(is_first, first).otherwise(F.coalesce("enqueued_at", "ready_at"))


def _is(*outcomes: str) -> Column:
    return F.col("outcome").isin(*outcomes)


def _ran() -> Column:
    return F.col("attempt") > 0


def _failed() -> Column:
    return _ran() & _is("retried", "dead")


def _started_us() -> Column:
    return F.unix_micros("started_at")


def _ended_us() -> Column:
    # What never started ended when it arrived.
    return F.coalesce(_started_us() + F.col("duration_us"), F.unix_micros("ready_at"))


def _run_ms() -> Column:
    return F.when(_ran(), F.col("duration_us") / 1_000.0)


def _wait_ms() -> Column:
    waited_us = _started_us() - F.unix_micros("ready_at")
    return F.when(waited_us > 0, waited_us / 1_000.0).when(waited_us <= 0, F.lit(0.0))


def _minute(micros: Column) -> Column:
    return F.floor(micros / F.lit(_MINUTE_US))


def _moment(minute: Column) -> Column:
    return F.timestamp_seconds(minute * 60)
