"""The sentence about a backlog: when it clears, or what it would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from chasquimq.spark.query.backlog import attainment, backlog_now, backlog_samples
from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope
from chasquimq.spark.report.format import (
    clock_text,
    count_text,
    moment_text,
    ms_text,
    name_text,
    rate_text,
    share_text,
    shown,
)
from chasquimq.spark.report.grid import NAME, QUEUE, first_of, grid, labels
from chasquimq.spark.report.shape import Bars, Column, Lines, Section, Series, Tone

_SOON = timedelta(hours=20)


def forecast_sentence(row: Mapping[str, Any]) -> str:
    """What becomes of the jobs that wait, if all goes on as it did; `row` is a sample and forecast."""
    waiting = (row["ready"] or 0) + (row["running"] or 0)
    if not waiting:
        return "nothing waits"
    if row["never_clears"]:
        return f"{count_text(waiting)} jobs {_never(row)}{_breach(row)}"
    if row["clears_at"] is None:
        return f"{count_text(waiting)} jobs wait; too early to say when they are done"
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


# A drawing each; further queues are in the table.
QUEUES_DRAWN_MAX: Final = 4
BARS_MAX: Final = 12
_BACKLOG: Final = (
    QUEUE,
    Column("ready", "ready", "count"),
    Column("running", "running", "count"),
    Column("delayed", "delayed", "count"),
    Column("dlq", "dead", "count"),
    Column("oldest_ms", "oldest waits", "ms"),
    Column("consumers", "workers", "count"),
    Column("arrival_rate", "arrive", "rate"),
    Column("departure_rate", "leave", "rate"),
    Column("outlook", "outlook"),
)
_DEPTHS: Final[tuple[tuple[str, str, Tone], ...]] = (
    ("ready", "ready", "calm"),
    ("running", "running", "good"),
    ("delayed", "delayed", "fair"),
    ("dlq", "dead", "bad"),
)
_TARGETS: Final = (
    QUEUE,
    NAME,
    Column("target_ms", "target", "ms"),
    Column("within", "within", "count"),
    Column("breached", "later", "count"),
    Column("kept_share", "kept", "share"),
    Column("wanted_share", "wanted", "share"),
    Column("burn", "allowance burnt"),
)


def backlog_section(answers: Answers, scope: Scope) -> Section:
    """What waited at the last look, and what becomes of it."""
    rows: list[dict[str, Any]] = [
        {**row, "outlook": forecast_sentence(row)} for row in backlog_now(answers, scope)
    ]
    if not rows:
        absence = "No samples of the server yet: the pipeline takes one with every batch."
        return Section("backlog", "Backlog and forecast", absence=absence)
    last_at: datetime = max(row["sampled_at"] for row in rows)
    return Section(
        "backlog",
        "Backlog and forecast",
        sentences=_outlooks(rows),
        grids=[grid(rows, *_BACKLOG, what="queues", is_queue_shown=True)],
        drawings=_depth_lines(answers, scope, rows[:QUEUES_DRAWN_MAX]),
        completeness=f"samples of the server; the last one of {moment_text(last_at)} UTC",
    )


def target_section(answers: Answers, scope: Scope, proof: str) -> Section:
    """How many jobs were done in time, for every target that was set."""
    rows = [{**row, "burn": _burn_text(row["burn_rate"])} for row in attainment(answers, scope)]
    if not rows:
        absence = "No target is set. Set one with `--slo NAME=MS`, such as --slo send-email=500."
        return Section("targets", "Targets", absence=absence)
    return Section(
        "targets",
        "Targets",
        sentences=[_target_sentence(rows)],
        grids=[grid(rows, *_TARGETS, what="targets")],
        drawings=[_target_bars(rows)],
        completeness=proof,
    )


def _outlooks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each queue that is drawn, and one that says how many are not."""
    sentences = [f"{shown(row['queue'])}: {row['outlook']}." for row in rows[:QUEUES_DRAWN_MAX]]
    left = len(rows) - len(sentences)
    if not left:
        return sentences
    more = "1 more queue" if left == 1 else f"{count_text(left)} more queues"
    waits = "it waits or runs less" if left == 1 else "they wait or run less"
    return [*sentences, f"And {more}, in the table; {waits}."]


def _depth_lines(
    answers: Answers, scope: Scope, rows: Sequence[Mapping[str, Any]]
) -> list[Lines]:  # fmt: skip
    drawn: list[Lines] = []
    for at, row in enumerate(rows):
        samples = backlog_samples(answers, scope, row["queue"])
        if len(samples) > 1:
            drawn.append(_depths(f"backlog-{at}", row["queue"], samples))
    return drawn


def _depths(key: str, queue: str, samples: Sequence[Mapping[str, Any]]) -> Lines:
    series = [
        Series(label, tone, [row[depth] or 0 for row in samples]) for depth, label, tone in _DEPTHS
    ]
    moments = [row["sampled_at"] for row in samples]
    return Lines(key, f"Backlog of {shown(queue, 60)}", moments, series, "jobs")


def _target_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    missed = [row for row in rows if (row["burn_rate"] or 0) > 1]
    if not missed:
        every = "The target is" if len(rows) == 1 else f"All {count_text(len(rows))} targets are"
        return f"{every} kept."
    worst = missed[0]
    return (
        f"{count_text(len(missed))} of {count_text(len(rows))} targets are missed; worst is "
        f"{name_text(worst['name'])}: {share_text(worst['kept_share'])} done within "
        f"{ms_text(worst['target_ms'])}, {share_text(worst['wanted_share'])} were wanted."
    )


def _burn_text(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:.1f} times"


def _target_bars(every: Sequence[Mapping[str, Any]]) -> Bars:
    rows = every[:BARS_MAX]
    kept = [100 * (row["kept_share"] or 0.0) for row in rows]
    return Bars(
        key="targets",
        title=first_of("Share that kept its target", every, BARS_MAX),
        labels=labels(rows, "name"),
        series=[
            Series("within", "good", kept),
            Series("later", "bad", [100 - share for share in kept]),
        ],
        unit="%",
        marks=[100 * row["wanted_share"] for row in rows],
    )
