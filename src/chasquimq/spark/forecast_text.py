"""The sentence about a backlog: when it clears, or what it would take."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from chasquimq.spark.report_format import clock_text, count_text, moment_text, ms_text, rate_text

_SOON = timedelta(hours=20)


def forecast_sentence(row: Mapping[str, Any]) -> str:
    """What becomes of the jobs that wait, if all goes on as it did; `row` is a sample and forecast."""
    waiting = (row["ready"] or 0) + (row["running"] or 0)
    if not waiting:
        return "nothing waits"
    if row["never_clears"]:
        return f"{count_text(waiting)} jobs {_never(row)}{_breach(row)}"
    if row["clears_at"] is None:
        return f"{count_text(waiting)} jobs wait; too early to tell when they are done"
    return f"{count_text(waiting)} jobs, {_clears(row)}{_breach(row)}"


def _clears(row: Mapping[str, Any]) -> str:
    away_ms = (row["clears_at"] - row["sampled_at"]).total_seconds() * 1000
    return (
        f"clears at {_when(row['clears_at'], row['sampled_at'])} (in {ms_text(max(0.0, away_ms))})"
    )


def _never(row: Mapping[str, Any]) -> str:
    workers = row["consumers"] or 0
    if not workers:
        return f"will not clear: no worker is alive{_rates(row)}"
    if row["workers_needed"] is None:
        return f"will not clear{_rates(row)}"
    # As many as keep up do not get ahead of what waits.
    more = max(1, row["workers_needed"] - workers)
    return f"will not clear: needs {more} more {'worker' if more == 1 else 'workers'}{_rates(row)}"


def _rates(row: Mapping[str, Any]) -> str:
    arriving, leaving = row["arrival_rate"], row["departure_rate"]
    if arriving is None or leaving is None:
        return ""
    return f" ({rate_text(arriving)} arrive, {rate_text(leaving)} leave)"


def _breach(row: Mapping[str, Any]) -> str:
    at = row["breach_at"]
    return "" if at is None else f"; its target breaks at {_when(at, row['sampled_at'])}"


def _when(moment: datetime, now: datetime) -> str:
    is_soon = abs(moment - now) < _SOON
    return clock_text(moment) if is_soon else f"{moment_text(moment)} UTC"
