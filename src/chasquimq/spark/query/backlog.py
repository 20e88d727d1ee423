"""What waits, where that is going, and whether it is in time: backlog, forecast and targets."""

# ruff: noqa: S608  the SQL is our own, and names of queues in it are quoted
from __future__ import annotations

from typing import Any, Final

from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope, traffic_sql

SAMPLES_MAX: Final = 240
DEPTHS: Final = ("ready", "running", "delayed", "dlq")


def backlog_now(answers: Answers, scope: Scope) -> list[dict[str, Any]]:
    """The last sample of each queue with its last forecast: growing, deep and busy ones first."""
    return answers.ask(f"""
        with samples as (
            select * from gold_backlog where {scope.where("sampled_at")}
            qualify row_number() over (partition by queue order by sampled_at desc) = 1
        ), forecasts as (
            select * from gold_forecast where {scope.where("made_at")}
            qualify row_number() over (partition by queue order by made_at desc) = 1
        ), traffic as ({traffic_sql(scope)})
        select samples.queue as queue, sampled_at, ready, running, delayed, dlq, oldest_ms,
               consumers, arrival_rate, departure_rate, clears_at, never_clears, breach_at,
               workers_needed
        from samples left join forecasts on forecasts.queue = samples.queue
             left join traffic on traffic.queue = samples.queue
        order by coalesce(never_clears, false) desc, ready + running desc,
                 coalesce(attempts, 0) desc, samples.queue
    """)


def backlog_samples(answers: Answers, scope: Scope, queue: str) -> list[dict[str, Any]]:
    """The samples of a queue along time; where there are many, the deepest of each stretch."""
    depths = ", ".join(f"max({depth}) as {depth}" for depth in DEPTHS)
    return answers.ask(
        f"""
        with samples as (
            select *, ntile({SAMPLES_MAX}) over (order by sampled_at) as stretch
            from gold_backlog where queue = $queue and {scope.where("sampled_at")}
        )
        select min(sampled_at) as sampled_at, {depths} from samples group by stretch order by stretch
        """,
        queue=queue,
    )


def attainment(answers: Answers, scope: Scope) -> list[dict[str, Any]]:
    """Every target: how many jobs kept it, and how fast the allowance is used up."""
    return answers.ask(f"""
        select queue, name, target_ms, sum(within)::bigint as within,
               sum(breached)::bigint as breached, 1 - max(allowed_share) as wanted_share,
               sum(within) / nullif(sum(within) + sum(breached), 0) as kept_share,
               sum(breached) / nullif(sum(within) + sum(breached), 0) / max(allowed_share)
                   as burn_rate
        from gold_slo where {scope.where("window_start")}
        group by queue, name, target_ms
        order by kept_share nulls last, queue, name, target_ms
    """)
