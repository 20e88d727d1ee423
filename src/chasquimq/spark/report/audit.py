"""The section that says how far the others can be trusted: audit, losses and oddities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Final

from chasquimq.spark.query.audit import Completeness, audits, gaps
from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope
from chasquimq.spark.report.format import count_text
from chasquimq.spark.report.grid import QUEUE, grid
from chasquimq.spark.report.shape import Column, Section

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
    "stale": ("stale ends", "ended after somebody else had ended them"),
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
    told = partial(grid, what="rows", is_queue_told=True)
    counts = told(settled, *_COUNTS, title="Rows against the server's count")
    odd = told(oddities, *_ODDITIES, title="What is odd")
    losses = told(ledger, *_GAPS, title="Known losses")
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
