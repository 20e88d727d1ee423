"""How much ran and how fast: by name, and along time."""

# ruff: noqa: S608  the SQL is our own, and names of queues in it are quoted
from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np

from chasquimq.spark.lake.sketches import Weights, values_at, weigh
from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope

RANKS: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# How an attempt takes its job out of the stream; the server counts all of these.
ENDS: Final = ("completed", "retried", "dead", "snoozed")
# A chart of more columns than this is a smear.
COLUMNS_MAX: Final = 90
# In a stretch this short minutes would say too little.
CLOSE_UP_S: Final = 15 * 60
_MINUTE_S: Final = 60
_WIDTHS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400,
)  # fmt: skip


class Traffic(NamedTuple):
    """A row for each name, and the percentiles over all of them."""

    names: list[dict[str, Any]]
    overall: dict[str, float | None]


class Timeline(NamedTuple):
    """Finished attempts in columns of equal width, empty ones included.

    `span_s` is how long it took from the first to the last of them.
    """

    moments: list[datetime]
    width_s: int
    completed: list[int]
    retried: list[int]
    dead: list[int]
    snoozed: list[int]
    span_s: float


def by_name(answers: Answers, scope: Scope) -> Traffic:
    """Starts and ends of each name, and the percentiles of waiting and running, busiest first."""
    rows = answers.ask(f"""
        with minutes as (
            select queue, name, sum(started) as started, sum(completed) as completed,
                   sum(failed) as failed, sum(retried) as retried, sum(dead) as dead,
                   list(wait_kll) as wait_kll, list(run_kll) as run_kll
            from gold_minute where {scope.where("window_start")} group by queue, name
        ), naps as (
            select queue, name, count(*) as snoozed from {_snoozed(scope)} group by queue, name
        )
        select minutes.*, coalesce(snoozed, 0)::bigint as snoozed
        from minutes left join naps on naps.queue = minutes.queue and naps.name = minutes.name
        order by started desc, minutes.queue, minutes.name
    """)
    waits = [weigh(row.pop("wait_kll")) for row in rows]
    runs = [weigh(row.pop("run_kll")) for row in rows]
    for row, wait, run in zip(rows, waits, runs, strict=True):
        row.update(_percentiles("wait", [wait]) | _percentiles("run", [run]))
    return Traffic(rows, _percentiles("wait", waits) | _percentiles("run", runs))


def failed_share(row: Mapping[str, Any]) -> float | None:
    """How many of all that ended had failed; None: nothing ended."""
    ended = sum(row[name] for name in ENDS)
    return (row["retried"] + row["dead"]) / ended if ended else None


def timeline(answers: Answers, scope: Scope) -> Timeline | None:
    """Ends along time; None: nothing ended."""
    minutes, attempts = _minutes(scope), _attempts(scope)
    span_s = _span_s(answers, minutes)
    if span_s is None:
        return None
    close_s = _span_s(answers, attempts) if span_s <= CLOSE_UP_S else None
    if close_s is not None:
        return _filled(answers, attempts, close_s, _width_s(close_s))
    # The last minute is one, too, and nothing is known of its seconds.
    span_s += _MINUTE_S
    return _filled(answers, minutes, span_s, max(_MINUTE_S, _width_s(span_s)))


def _percentiles(what: str, weights: list[Weights]) -> dict[str, float | None]:
    found = values_at(np.concatenate([*weights, weigh(())]), list(RANKS.values()))
    return {f"{what}_{rank}_ms": value for rank, value in zip(RANKS, found, strict=True)}


def _minutes(scope: Scope) -> str:
    return f"""(
        select window_start as ended, completed, retried, dead, 0 as snoozed
        from gold_minute where {scope.where("window_start")}
        union all select window_start, 0, 0, 0, 1 from {_snoozed(scope)}
    )"""


def _snoozed(scope: Scope) -> str:
    """Attempts that a handler put off, with their minutes; the minutes themselves leave them out."""
    return f"""(
        select queue, name, date_trunc('minute', ended_at) as window_start
        from silver_attempts where outcome = 'snoozed' and {scope.where("window_start")}
    )"""


def _attempts(scope: Scope) -> str:
    return f"""(
        select ended_at as ended, (outcome = 'completed')::int as completed,
               (outcome = 'retried')::int as retried,
               (outcome in ('dead', 'rejected'))::int as dead, (outcome = 'snoozed')::int as snoozed
        from silver_attempts
        where outcome in ('completed', 'retried', 'dead', 'rejected', 'snoozed')
          and {scope.where("ended_at")}
    )"""


def _span_s(answers: Answers, source: str) -> float | None:
    (row,) = answers.ask(f"select min(ended) as first, max(ended) as last from {source}")
    return None if row["last"] is None else (row["last"] - row["first"]).total_seconds()


def _filled(answers: Answers, source: str, span_s: float, width_s: int) -> Timeline:
    width = f"interval '{width_s} seconds'"
    rows = answers.ask(f"""
        with ends as (
            select time_bucket({width}, ended) as bucket, sum(completed) as completed,
                   sum(retried) as retried, sum(dead) as dead, sum(snoozed) as snoozed
            from {source} group by bucket
        ), every as (
            select unnest(generate_series(min(bucket), max(bucket), {width})) as bucket from ends
        )
        select every.bucket as bucket, coalesce(completed, 0)::bigint as completed,
               coalesce(retried, 0)::bigint as retried, coalesce(dead, 0)::bigint as dead,
               coalesce(snoozed, 0)::bigint as snoozed
        from every left join ends on ends.bucket = every.bucket order by every.bucket
    """)
    figures = ([row[name] for row in rows] for name in ENDS)
    return Timeline([row["bucket"] for row in rows], width_s, *figures, span_s=span_s)


def _width_s(span_s: float) -> int:
    fitting = (width_s for width_s in _WIDTHS_S if span_s / width_s < COLUMNS_MAX)
    return next(fitting, -(-int(span_s) // COLUMNS_MAX))
