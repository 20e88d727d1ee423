"""Sections about what ran: throughput, and the times of waiting and running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope
from chasquimq.spark.query.traffic import Timeline, failed_share, timeline
from chasquimq.spark.report.format import count_text, ms_text, name_text, rate_text
from chasquimq.spark.report.grid import NAME, QUEUE, first_of, grid, labels
from chasquimq.spark.report.shape import Column, Columns, Section, Series, Spans

BARS_MAX: Final = 12
# A rate over less than this would be that of a moment.
SPAN_MIN_S: Final = 1
_COUNTS: Final = (
    QUEUE,
    NAME,
    Column("started", "started", "count"),
    Column("completed", "completed", "count"),
    Column("retried", "retried", "count"),
    Column("dead", "dead", "count"),
    Column("failed_share", "failed", "share"),
)
_WAIT_BEGINS: Final = (
    "Waits count from when a job could be taken: for delayed jobs and retries that is when they "
    "were moved to the stream, not when they were added."
)
_SNOOZED: Final = Column("snoozed", "snoozed", "count")
_TIMES: Final = (
    QUEUE,
    NAME,
    Column("wait_p50_ms", "wait p50", "ms"),
    Column("wait_p90_ms", "wait p90", "ms"),
    Column("wait_p99_ms", "wait p99", "ms"),
    Column("run_p50_ms", "run p50", "ms"),
    Column("run_p90_ms", "run p90", "ms"),
    Column("run_p99_ms", "run p99", "ms"),
)


def throughput_section(
    answers: Answers, scope: Scope, names: Sequence[Mapping[str, Any]], proof: str
) -> Section:
    """How many attempts ended, when, and how."""
    along = timeline(answers, scope)
    if along is None:
        absence = "No attempt has ended yet. Workers write their history; run the pipeline again."
        return Section("throughput", "Throughput", absence=absence)
    rows = [{**row, "failed_share": failed_share(row)} for row in names]
    has_snoozed = any(row["snoozed"] for row in names)
    columns = (*_COUNTS[:-1], _SNOOZED, _COUNTS[-1]) if has_snoozed else _COUNTS
    return Section(
        "throughput",
        "Throughput",
        sentences=[_pace_sentence(along)],
        grids=[grid(rows, *columns, what="names")],
        drawings=[_columns(along)],
        completeness=proof,
    )


def speed_section(names: Sequence[Mapping[str, Any]], proof: str) -> Section:
    """How long jobs waited until a worker took them, and how long they ran."""
    timed = [row for row in names if row["run_p50_ms"] is not None]
    if not timed:
        absence = "No times yet: they come with the first attempt that ends."
        return Section("speed", "Waiting and running", absence=absence)
    return Section(
        "speed",
        "Waiting and running",
        sentences=[_slowest_sentence(timed), *_wait_sentences(timed)],
        grids=[grid(timed, *_TIMES, what="names")],
        drawings=[
            one
            for one in (
                _spans("wait", "Wait before a start", timed),
                _spans("run", "Run time", timed),
            )
            if one.labels
        ],
        completeness=f"{proof}; percentiles are off by 1.4 % of rank at most",
    )


def _pace_sentence(along: Timeline) -> str:
    parts = (along.completed, along.retried, along.dead, along.snoozed)
    ends = [sum(each) for each in zip(*parts, strict=True)]
    peak = max(range(len(ends)), key=ends.__getitem__)
    span_s = max(SPAN_MIN_S, along.span_s)
    return (
        f"{count_text(sum(ends))} attempts ended, {rate_text(sum(ends) / span_s)} over the "
        f"{ms_text(span_s * 1000)} from the first end to the last; at most "
        f"{rate_text(ends[peak] / along.width_s)}, at {along.moments[peak]:%H:%M:%S} UTC."
        f"{_snoozed_text(sum(along.snoozed))}"
    )


def _snoozed_text(count: int) -> str:
    if not count:
        return ""
    return f" {count_text(count)} of them {'was' if count == 1 else 'were'} snoozed (RetryLater)."


def _columns(along: Timeline) -> Columns:
    return Columns(
        key="throughput",
        title=f"Attempts that ended, every {_width_text(along.width_s)}",
        moments=along.moments,
        width_s=along.width_s,
        series=[
            Series("completed", "good", along.completed),
            Series("retried", "fair", along.retried),
            Series("dead", "bad", along.dead),
            *([Series("snoozed", "calm", along.snoozed)] if any(along.snoozed) else []),
        ],
        unit="attempts",
    )


def _width_text(width_s: int) -> str:
    for unit_s, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if width_s % unit_s == 0:
            count = width_s // unit_s
            return unit if count == 1 else f"{count} {unit}s"
    return f"{width_s} seconds"


def _slowest_sentence(timed: Sequence[Mapping[str, Any]]) -> str:
    """Who waits and who runs longest; from events of ChasquiMQ (Rust) no wait is known."""
    runs = max(timed, key=lambda row: row["run_p99_ms"])
    run = f"{name_text(runs['name'])} runs longest (p99 {ms_text(runs['run_p99_ms'])})"
    waited = [row for row in timed if row["wait_p99_ms"] is not None]
    if not waited:
        return f"{run}; how long jobs waited is not known."
    waits = max(waited, key=lambda row: row["wait_p99_ms"])
    return f"{name_text(waits['name'])} waits longest (p99 {ms_text(waits['wait_p99_ms'])}), {run}."


def _wait_sentences(timed: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_WAIT_BEGINS] if any(row["wait_p99_ms"] is not None for row in timed) else []


def _spans(what: str, title: str, timed: Sequence[Mapping[str, Any]]) -> Spans:
    known = [row for row in timed if row[f"{what}_p50_ms"] is not None]
    rows = known[:BARS_MAX]
    p50, p90, p99 = ([row[f"{what}_{rank}_ms"] for row in rows] for rank in ("p50", "p90", "p99"))
    title = first_of(f"{title}: median, 90 % and 99 %", known, BARS_MAX)
    return Spans(what, title, labels(rows, "name"), p50, p90, p99)
