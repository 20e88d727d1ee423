"""Gathers what the audit needs from the tables, without a JVM."""

# ruff: noqa: S608  the SQL is our own, and names in it are of our tables
from __future__ import annotations

from typing import Any, Final

import duckdb

from chasquimq.spark.lake import Lake
from chasquimq.spark.table_schemas import TABLES
from chasquimq.spark.table_sql import rows_of
from chasquimq.spark.views import view_sql

# What took an entry out of the stream; the others did not count, or perhaps not.
_LEFT: Final = "('completed', 'retried', 'dead', 'rejected', 'snoozed')"
# A worker knows the server's clock as well as a round trip tells it; more is a clock that is wrong.
_SKEW_MS: Final = 100
# A day of many millions goes to disk for a moment instead.
_MEMORY: Final = "256MB"
_ENDS: Final = "('completed', 'dead', 'rejected')"


class AuditFacts:
    """Questions about one day, asked of the files of that day."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._connection: Any = duckdb.connect()
        self._connection.execute("set TimeZone = 'UTC'")
        self._connection.execute(f"set memory_limit = '{_MEMORY}'")
        self._connection.execute("set preserve_insertion_order = false")
        folder = str(lake.path / "_pipeline" / "spill")
        self._connection.execute("set temp_directory = $folder", {"folder": folder})

    def close(self) -> None:
        self._connection.close()

    def attempts(self, day: str) -> dict[str, dict[str, Any]]:
        """Rows of each queue: how many left the stream, and how many are odd."""
        return self._by_queue(f"""
            select queue, count(*) filter (outcome in {_LEFT}) as rows_finished,
                   count(*) filter (attempt > 0) as runs,
                   count(*) filter (deliveries > 1) as redeliveries,
                   count(*) filter (outcome = 'stale') as stale,
                   count(*) filter (outcome = 'unproven') as unproven
            from {self._rows("silver_attempts", day)} group by queue
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
        """Starts that the events told."""
        return self._by_queue(f"""
            select queue, count(*) as starts from {self._rows("bronze_events", day)}
            where event = 'active' group by queue
        """)

    def gaps(self, day: str) -> dict[str, dict[str, Any]]:
        """Known losses: attempts that were counted, entries that hold nobody knows how many."""
        return self._by_queue(f"""
            select queue, coalesce(sum(lost) filter (unit = 'attempts'), 0)::bigint as rows_lost,
                   greatest(coalesce(sum(lost) filter (cause = 'sequence'), 0),
                            coalesce(sum(lost) filter (unit = 'entries' and cause <> 'sequence'), 0)
                           )::bigint as entries_lost,
                   bool_or(unit = 'entries' or lost is null) as has_unknown_gap
            from {self._rows("bronze_gaps", day)} group by queue
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

    def first_sampled(self) -> dict[str, str]:
        """The day of the first sample of each queue."""
        rows = self._by_queue(f"""
            select queue, min(sampled_at)::date as day
            from {self._rows("gold_backlog", *self._lake.days("gold_backlog"))} group by queue
        """)
        return {queue: row["day"].isoformat() for queue, row in rows.items()}

    def runs(self) -> list[dict[str, Any]]:
        """Worker runs without an end, by the day of their last entry."""
        return self._ask(f"""
            select queue, worker, run, max(last_at)::date as day
            from ({view_sql(self._lake.path, "bronze_runs")})
            where not is_ended group by queue, worker, run
        """)

    def rows_until(self, day: str) -> dict[str, dict[str, Any]]:
        """Rows of all days up to this one."""
        days = [one for one in self._lake.days("silver_attempts") if one <= day]
        return self._by_queue(f"""
            select queue, count(*) filter (outcome in {_LEFT}) as rows_finished
            from {self._rows("silver_attempts", *days)} group by queue
        """)

    def _rows(self, name: str, *days: str) -> str:
        paths = [path for day in days for path in self._lake.files(name, day)]
        return f"({rows_of(TABLES[name], paths)})"

    def _by_queue(self, question: str) -> dict[str, dict[str, Any]]:
        return {row["queue"]: row for row in self._ask(question)}

    def _ask(self, question: str) -> list[dict[str, Any]]:
        found = self._connection.execute(question)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
