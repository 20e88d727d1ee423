"""Gathers what the audit needs from the tables, without a JVM."""

# ruff: noqa: S608  the SQL is our own, and names in it are of our tables
from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

import duckdb

from chasquimq.spark.lake.checkpoints import own_folder
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.lake.table_sql import rows_of
from chasquimq.spark.lake.tables import TABLES
from chasquimq.spark.lake.views import view_sql

# What took an entry out of the stream; the others did not count, or perhaps not.
_LEFT: Final = "('completed', 'retried', 'dead', 'rejected', 'snoozed')"
# A worker knows the server's clock as well as a round trip shows it; more is a clock that is wrong.
_SKEW_MS: Final = 100
# A day of many millions goes to disk for a moment instead.
_MEMORY: Final = "256MB"
_ENDS: Final = "('completed', 'dead', 'rejected')"
_UNKNOWN: Final = "(unit = 'entries' or lost is null)"


class Look(NamedTuple):
    """The first and the last look at a queue on a day."""

    first_at: datetime
    last_at: datetime


class AuditFacts:
    """Questions about one day, asked of the files of that day."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._connection: Any = duckdb.connect()
        self._connection.execute("set TimeZone = 'UTC'")
        self._connection.execute(f"set memory_limit = '{_MEMORY}'")
        self._connection.execute("set preserve_insertion_order = false")
        folder = str(own_folder(lake.path) / "spill")
        self._connection.execute("set temp_directory = $folder", {"folder": folder})

    def close(self) -> None:
        self._connection.close()

    def looks(self) -> dict[str, dict[str, Look]]:
        """When each queue was first and last looked at, by day."""
        looks: dict[str, dict[str, Look]] = {}
        for row in self._ask(f"""
            select queue, sampled_at::date as day, min(sampled_at) as first_at,
                   max(sampled_at) as last_at
            from {self._rows("gold_backlog", *self._lake.days("gold_backlog"))}
            group by all order by day
        """):
            look = Look(row["first_at"], row["last_at"])
            looks.setdefault(row["queue"], {})[row["day"].isoformat()] = look
        return looks

    def attempts(self, day: str) -> dict[str, dict[str, Any]]:
        """Rows of each queue: how many left the stream, and how many are odd.

        `*_by` counts those until the last look of the day, `*_first` those until the first.
        """
        return self._by_queue(f"""
            with looks as ({self._edges(day)}), rows as (
                select queue, outcome, attempt, deliveries, outcome in {_LEFT} as has_left,
                       {_within(day, "ended_at")} as reported_at
                from {self._rows("silver_attempts", day)}
            )
            select queue, count(*) filter (has_left) as rows_finished,
                   count(*) filter (has_left and reported_at <= last_at) as rows_finished_by,
                   count(*) filter (has_left and reported_at <= first_at) as rows_finished_first,
                   count(*) filter (attempt > 0) as runs,
                   count(*) filter (attempt > 0 and reported_at <= last_at) as runs_by,
                   count(*) filter (deliveries > 1) as redeliveries,
                   count(*) filter (outcome = 'stale') as stale,
                   count(*) filter (outcome = 'unproven') as unproven,
                   count(*) filter (outcome = 'unproven' and reported_at <= last_at) as unproven_by
            from rows left join looks using (queue) group by queue
        """)

    def ends(self, day: str) -> dict[str, dict[str, Any]]:
        """Jobs that ended more than once: for good, or again after the DLQ."""
        rows = self._rows("silver_attempts", day)
        # Few jobs have two ends, and numbers find them faster than texts.
        is_end = f"outcome in {_ENDS} and job_id <> ''"
        many = f"""
            select hash(queue, job_id) from {rows} where {is_end} group by all having count(*) > 1
        """
        return self._by_queue(f"""
            select queue, count(*) filter (completed > 1 or last_dead > first_completed)
                              as jobs_with_two_ends,
                   count(*) filter (last_end > first_dead) as ends_after_dlq
            from (
                select queue, job_id, count(*) filter (outcome = 'completed') as completed,
                       min(ended_at) filter (outcome = 'completed') as first_completed,
                       min(ended_at) filter (outcome <> 'completed') as first_dead,
                       max(ended_at) filter (outcome <> 'completed') as last_dead,
                       max(ended_at) as last_end
                from {rows}
                where {is_end} and hash(queue, job_id) in ({many}) group by queue, job_id
                having count(*) > 1
            ) group by queue
        """)

    def skewed(self, day: str) -> dict[str, dict[str, Any]]:
        """Attempts that began before they could: two clocks disagree."""
        return self._by_queue(f"""
            select queue, count(*) filter (
                started_at < ready_at - interval '{_SKEW_MS} milliseconds'
                or started_at < enqueued_at - interval '{_SKEW_MS} milliseconds'
            ) as skewed_clocks
            from {self._rows("bronze_attempts", day)} group by queue
        """)

    def starts(self, day: str) -> dict[str, dict[str, Any]]:
        """Starts that the events reported, and those until the last look of the day."""
        return self._by_queue(f"""
            with looks as ({self._edges(day)})
            select queue, count(*) as starts,
                   count(*) filter ({_within(day, "ts")} <= last_at) as starts_by
            from {self._rows("bronze_events", day)} left join looks using (queue)
            where event = 'active' group by queue
        """)

    def gaps(self, day: str) -> dict[str, dict[str, Any]]:
        """Known losses: attempts that were counted, entries that hold an unknown number.

        `*_late` are those that were noticed after the last look of the day.
        """
        is_late = "detected_at > last_at"
        return self._by_queue(f"""
            with looks as ({self._edges(day)})
            select queue, {_sum("lost", "unit = 'attempts'")} as rows_lost,
                   {_sum("lost", f"unit = 'attempts' and {is_late}")} as rows_lost_late,
                   greatest({_sum("lost", "cause = 'sequence'")},
                            {_sum("lost", "unit = 'entries' and cause <> 'sequence'")}
                           ) as entries_lost,
                   coalesce(bool_or({_UNKNOWN}), false) as has_unknown_gap,
                   coalesce(bool_or({_UNKNOWN} and {is_late}), false) as has_unknown_gap_late
            from {self._rows("bronze_gaps", day)} left join looks using (queue) group by queue
        """)

    def samples(self, day: str) -> dict[str, dict[str, Any]]:
        """What the server's counter says of a day, and when it last moved.

        The first sample of all has nothing to compare with: `first_left` had left before it.
        """
        return self._by_queue(f"""
            with samples as (
                select *, row_number() over (partition by queue order by sampled_at) as place
                from {self._rows("gold_backlog", day)}
            )
            select queue, coalesce(sum(finished), 0)::bigint as finished,
                   arg_min(entries_added - ready - running, sampled_at) as first_left,
                   bool_or(finished is null and place = 1) as begins_unknown,
                   bool_or(finished is null and place > 1) as breaks_off,
                   arg_max(ready + running, sampled_at) as backlog,
                   arg_max(running, sampled_at) as running,
                   max(sampled_at) filter (finished is distinct from 0 or arrived is distinct from 0)
                       as moved_at,
                   max(sampled_at) as sampled_at
            from samples group by queue
        """)

    def runs(self) -> list[dict[str, Any]]:
        """All runs of workers: from when until when they wrote, and whether they closed."""
        return self._ask(f"""
            select queue, worker, run, coalesce(min(first_at), min(last_at)) as first_at,
                   max(last_at) as last_at, bool_or(is_ended) as is_ended
            from ({view_sql(self._lake.path, "bronze_runs")}) group by queue, worker, run
        """)

    def days_between(self, after: str, before: str) -> list[str]:
        """Days with rows or gaps, none of which is one of the two."""
        days = {*self._lake.days("silver_attempts"), *self._lake.days("bronze_gaps")}
        return sorted(day for day in days if after < day < before)

    def _edges(self, day: str) -> str:
        return f"""
            select queue, min(sampled_at) as first_at, max(sampled_at) as last_at
            from {self._rows("gold_backlog", day)} group by queue
        """

    def _rows(self, name: str, *days: str) -> str:
        paths = [path for day in days for path in self._lake.files(name, day)]
        return f"({rows_of(TABLES[name], paths)})"

    def _by_queue(self, question: str) -> dict[str, dict[str, Any]]:
        return {row["queue"]: row for row in self._ask(question)}

    def _ask(self, question: str) -> list[dict[str, Any]]:
        found = self._connection.execute(question)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _within(day: str, moment: str) -> str:
    """A moment of a worker's clock, kept within the day on which it reached the server."""
    midnight = f"timestamptz '{day} 00:00:00+00'"
    known = f"greatest(coalesce({moment}, {midnight}), {midnight})"
    return f"least({known}, {midnight} + interval 1 day)"


def _sum(column: str, condition: str) -> str:
    return f"coalesce(sum({column}) filter ({condition}), 0)::bigint"
