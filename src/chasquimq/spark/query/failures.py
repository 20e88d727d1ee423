"""What failed and what trying again was worth: by fingerprint, and by name and attempt."""

# ruff: noqa: S608  the SQL is our own, and names of queues in it are quoted
from __future__ import annotations

from datetime import datetime
from typing import Any

from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope


def by_fingerprint(answers: Answers, scope: Scope) -> list[dict[str, Any]]:
    """Every kind of failure: how often, how many jobs it ended, and what it cost.

    What no handler saw and was buried counts as failed, too.
    """
    return answers.ask(f"""
        select queue, name, fingerprint, max(reason) as reason,
               greatest(sum(failed), sum(dead))::bigint as failed,
               sum(dead)::bigint as dead, sum(run_us) / 1000 as run_ms,
               min(first_seen) as first_seen, max(last_seen) as last_seen
        from gold_failures where {scope.where("window_start")}
        group by queue, name, fingerprint
        order by failed desc, dead desc, queue, name, fingerprint
    """)


def by_attempt(answers: Answers, scope: Scope) -> list[dict[str, Any]]:
    """Every attempt of every name that was ever retried; `added_delay_ms` None: not known."""
    source = _kept_retries(scope) if scope.since is None else _recent_retries(scope)
    return answers.ask(f"""
        select queue, name, attempt, sum(runs)::bigint as runs,
               sum(completed)::bigint as completed, sum(retried)::bigint as retried,
               sum(dead)::bigint as dead, sum(completed) / sum(runs) as success_share,
               sum(added_delay_ms)::bigint as added_delay_ms, sum(run_us) / 1000 as run_ms
        from {source}
        group by queue, name, attempt
        qualify max(attempt) over (partition by queue, name) > 1
             or sum(sum(retried)) over (partition by queue, name) > 0
        order by queue, name, attempt
    """)


def next_wave(answers: Answers, scope: Scope, now: datetime) -> dict[str, Any] | None:
    """The minute ahead into which most retries fall; None: none lie ahead."""
    rows = answers.ask(
        f"""
        select wave_at, sum(retried)::bigint as jobs from gold_retries
        where wave_at > $now and {scope.where_queue()}
        group by wave_at order by jobs desc, wave_at limit 1
        """,
        now=now,
    )
    return rows[0] if rows else None


def _kept_retries(scope: Scope) -> str:
    return f"(select * from gold_retries where {scope.where_queue()})"


def _recent_retries(scope: Scope) -> str:
    """The same from the attempts themselves: the kept figures have no moment to cut at."""
    return f"""(
        select queue, name, attempt, 1 as runs, (outcome = 'completed')::int as completed,
               (outcome = 'retried')::int as retried,
               (outcome in ('dead', 'rejected'))::int as dead,
               null::bigint as added_delay_ms, duration_us as run_us
        from silver_attempts where {scope.where("ended_at")}
    )"""
