"""Makes a report: its first figures, one section for each question, and the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any, Final

from chasquimq.spark.query.audit import Completeness, audits, completeness, gaps
from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope, known_queues, newest_at, oldest_at, scope_of
from chasquimq.spark.query.traffic import ENDS, Traffic, by_name, failed_share
from chasquimq.spark.report.backlog import backlog_section, target_section
from chasquimq.spark.report.failures import failures_section, retries_section
from chasquimq.spark.report.format import count_text, share_text, text_of
from chasquimq.spark.report.grid import QUEUE, grid
from chasquimq.spark.report.shape import Column, Figure, Report, Section, Tone
from chasquimq.spark.report.traffic import speed_section, throughput_section

# Shares of failed attempts up to which a queue does well, and fairly.
GOOD_FAILED_SHARE: Final = 0.01
FAIR_FAILED_SHARE: Final = 0.05
_COUNTS: Final = (
    QUEUE,
    Column("event_date", "day"),
    Column("channel", "channel"),
    Column("server_finished", "counted", "count"),
    Column("rows_finished", "rows", "count"),
    Column("missing_proven", "missing", "count"),
    Column("missing_maybe", "perhaps explained", "count"),
    Column("surplus", "too many", "count"),
    Column("is_settled", "settled"),
)
# What is odd and no loss: the words for it, and what it means.
_ODD: Final = {
    "open_runs": ("workers with an open end", "still run, or were killed"),
    "jobs_with_two_ends": ("jobs with two ends", "ended twice, which should never be"),
    "ends_after_dlq": ("ends after the DLQ", "came back from the DLQ and ended again"),
    "redeliveries": ("redeliveries", "delivered again after their worker had gone"),
    "stale": ("stale ends", "ended after another worker had ended them"),
    "unproven": ("unproven ends", "the connection broke while they ended"),
    "skewed_clocks": ("skewed clocks", "started before they were ready, by their clocks"),
    "starts_without_end_proven": ("starts without an end", "no gap explains it"),
    "starts_without_end_maybe": ("starts without an end in a gap", "a known gap may explain it"),
}
_ODDITIES: Final = (
    QUEUE,
    Column("event_date", "day"),
    Column("channel", "channel"),
    Column("what", "what"),
    Column("count", "how many", "count"),
    Column("meaning", "meaning"),
)
_GAPS: Final = (
    QUEUE,
    Column("channel", "channel"),
    Column("cause", "cause"),
    Column("gaps", "gaps", "count"),
    Column("lost", "lost", "count"),
    Column("unit", "of what"),
    Column("unknown", "of unknown size", "count"),
    Column("last_seen", "last seen", "moment"),
)


def make_report(
    answers: Answers, queues: Sequence[str] = (), last: timedelta | None = None
) -> Report:
    """All about these queues, or about every one; `last`: only the end of the time they cover."""
    scope = scope_of(answers, queues, last)
    traffic = by_name(answers, scope)
    whole = completeness(answers, scope)
    proof = whole.sentence()
    return Report(
        queues=list(queues) or known_queues(answers),
        first_at=oldest_at(answers, scope),
        last_at=newest_at(answers, queues),
        figures=figures_of(traffic, whole),
        sections=[
            throughput_section(answers, scope, traffic.names, proof),
            speed_section(traffic.names, proof),
            failures_section(answers, scope, proof),
            retries_section(answers, scope, proof),
            backlog_section(answers, scope),
            target_section(answers, scope, proof),
            audit_section(answers, scope, whole),
        ],
    )


def figures_of(traffic: Traffic, whole: Completeness) -> list[Figure]:
    """What a reader sees first."""
    names, overall = traffic
    ends = {name: sum(row[name] or 0 for row in names) for name in ENDS}
    return [
        _count("attempts", "attempts", sum(ends.values())),
        _count("completed", "completed", ends["completed"]),
        _failed(failed_share(ends)),
        _count("buried", "dead", ends["dead"], "bad" if ends["dead"] else "good"),
        _count("snoozed", "snoozed", ends["snoozed"]),
        _ms("wait p99", "wait_p99_ms", overall),
        _ms("run p99", "run_p99_ms", overall),
        _complete(whole),
    ]


def _count(label: str, name: str, count: int, tone: Tone = "plain") -> Figure:
    return Figure(label, count_text(count), name, count, tone)


def _ms(label: str, name: str, overall: Mapping[str, float | None]) -> Figure:
    return Figure(label, text_of(overall[name], "ms"), name, overall[name])


def _failed(share: float | None) -> Figure:
    tone: Tone = "plain"
    if share is not None:
        tone = "good" if share <= GOOD_FAILED_SHARE else "fair"
        tone = tone if share <= FAIR_FAILED_SHARE else "bad"
    return Figure("failed", text_of(share, "share"), "failed_share", share, tone)


def _complete(whole: Completeness) -> Figure:
    text, tone = _complete_text(whole)
    label = "completeness" if whole.since is None else "completeness of the days"
    return Figure(label, text, "completeness_share", whole.share, tone)


def _complete_text(whole: Completeness) -> tuple[str, Tone]:
    if whole.share is None:
        return text_of(None, "share"), "plain"
    if whole.surplus or (whole.unknown_gaps and not whole.missing):
        return "not known", "bad"
    if whole.share == 1 and not whole.is_proven:
        return "not proven", "fair"
    if whole.share == 1 and not whole.is_settled:
        return "100 % so far", "fair"
    return share_text(whole.share), "good" if whole.is_whole else "bad"


def audit_section(answers: Answers, scope: Scope, whole: Completeness) -> Section:
    """Rows against the server's own counters, and the ledger of what was lost."""
    # What is missing and what is newest comes first: a table shows only so many rows.
    rows = sorted(audits(answers, scope), key=_off_and_newest, reverse=True)
    ledger = sorted(gaps(answers, scope), key=_loss, reverse=True)
    if not rows and not ledger:
        absence = (
            "No audit yet: a pipeline makes one when it ends, and twice a minute while it runs."
        )
        return Section("audit", "Audit and completeness", absence=absence)
    settled = [{**row, "is_settled": _settled_text(row["is_settled"])} for row in rows]
    oddities = _oddities(rows)
    table = partial(grid, what="rows", is_queue_shown=True)
    counts = table(settled, *_COUNTS, title="Rows against the server's count")
    odd = table(oddities, *_ODDITIES, title="What is odd")
    losses = table(ledger, *_GAPS, title="Known losses")
    return Section(
        "audit",
        "Audit and completeness",
        sentences=[f"Completeness: {whole.sentence()}.", _odd_sentence(oddities)],
        grids=[one for one in (counts, odd, losses) if one.rows],
    )


def _off_and_newest(row: Mapping[str, Any]) -> tuple[int, date]:
    off = ("missing_proven", "missing_maybe", "surplus")
    return sum(row[name] or 0 for name in off), row["event_date"]


def _loss(row: Mapping[str, Any]) -> tuple[int, int]:
    """How bad a loss is: one of unknown size may be the worst."""
    return row["unknown"] or 0, row["lost"] or 0


def _settled_text(is_settled: bool | None) -> str | None:
    return None if is_settled is None else "yes" if is_settled else "no, jobs waited or ran"


def _oddities(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each thing that was seen; what a channel cannot know is no row."""
    found = [
        {**row, "what": what, "count": row[name], "meaning": meaning}
        for row in rows
        for name, (what, meaning) in _ODD.items()
        if row[name]
    ]
    return sorted(found, key=lambda one: one["count"], reverse=True)


def _odd_sentence(oddities: Sequence[Mapping[str, Any]]) -> str:
    counts: Counter[str] = Counter()
    for one in oddities:
        counts[one["what"]] += one["count"]
    found = ", ".join(f"{count_text(count)} {what}" for what, count in counts.items())
    return f"To look at: {found}." if found else "Nothing odd was seen."
