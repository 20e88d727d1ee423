"""The audit: rows against the server's own counters, day by day, and what is odd about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa

from chasquimq.spark.lake.checkpoints import own_folder
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.lake.tables import GOLD_AUDIT
from chasquimq.spark.pipeline.audit.days import Days, Spell
from chasquimq.spark.pipeline.audit.facts import AuditFacts
from chasquimq.spark.pipeline.audit.read_progress import Standing
from chasquimq.spark.pipeline.audit.runs import FoundDead, open_runs
from chasquimq.spark.pipeline.channels import EVENTS, HISTORY
from chasquimq.wire.history import DayCounts, DayVerdict, judge_days

_TAG: Final = "audit"
_DAYS: Final = 2
_DAY: Final = "event_date"

Row = Mapping[str, Any]


def audit(lake: Lake, channels: Mapping[str, str], standing: Standing) -> list[dict[str, Any]]:
    """Judge the last days once more; the answer is the rows it made."""
    # The day before them may have what one of them lacks: it is compared and not written.
    compared = lake.days("gold_backlog")[-_DAYS - 1 :]
    chosen = compared[-_DAYS:]
    facts = AuditFacts(lake)
    try:
        days = _days(lake, facts, channels, standing)
        rows = [
            row
            for queue, channel in channels.items()
            for row in _rows(queue, channel, days, compared)
            if row[_DAY].isoformat() in chosen
        ]
    finally:
        facts.close()
    for day in chosen:
        of_day = [row for row in rows if row[_DAY] == date.fromisoformat(day)]
        _replace(lake, day, [*_of_others(lake, day, channels), *of_day])
    return rows


def _days(lake: Lake, facts: AuditFacts, queues: Collection[str], standing: Standing) -> Days:
    now = datetime.now(UTC)
    found = FoundDead(own_folder(lake.path) / "found-dead.json")
    runs = open_runs(facts.runs(), queues, standing.alive, found, now)
    return Days(facts, runs, standing, now)


def _rows(queue: str, channel: str, days: Days, compared: Sequence[str]) -> list[dict[str, Any]]:
    counts = [days.counts(queue, day) for day in compared]
    verdicts = judge_days(counts)
    spells = [days.spell(queue, day) for day in compared]
    return [
        _row(days, spell, one, verdict, channel)
        for spell, one, verdict in zip(spells, counts, verdicts, strict=True)
        if spell is not None
    ]


def _row(
    days: Days, spell: Spell, counts: DayCounts, verdict: DayVerdict, channel: str
) -> dict[str, Any]:
    queue, day = counts.queue, counts.day
    ends = days.of(days.facts.ends, day, queue)
    return {
        "queue": queue,
        _DAY: date.fromisoformat(day),
        "channel": channel,
        "audited_at": datetime.now(UTC),
        "server_finished": counts.server_finished,
        "rows_finished": counts.rows_finished,
        "rows_lost": days.told(queue, spell, "rows_lost"),
        "entries_lost": days.told(queue, spell, "entries_lost"),
        "missing_proven": verdict.missing_proven,
        "missing_maybe": verdict.missing_maybe,
        "surplus": verdict.surplus,
        "is_settled": counts.is_settled,
        "jobs_with_two_ends": ends.get("jobs_with_two_ends", 0),
        "ends_after_dlq": ends.get("ends_after_dlq", 0),
        "redeliveries": days.of(days.facts.attempts, day, queue).get("redeliveries", 0),
        **(_of_history(days, spell, queue) if channel == HISTORY else {}),
        **(_of_events(days, spell, counts) if channel == EVENTS else {}),
    }


def _of_history(days: Days, spell: Spell, queue: str) -> dict[str, Any]:
    """What only the history tells."""
    attempts = days.of(days.facts.attempts, spell.day, queue)
    return {
        "open_runs": days.open_runs(queue, spell),
        "stale": attempts.get("stale", 0),
        "unproven": attempts.get("unproven", 0),
        "skewed_clocks": days.of(days.facts.skewed, spell.day, queue).get("skewed_clocks", 0),
    }


def _of_events(days: Days, spell: Spell, counts: DayCounts) -> dict[str, Any]:
    """What only the events tell; where starts are not told, nobody can miss an end."""
    queue = counts.queue
    if not days.of(days.facts.starts, spell.day, queue):
        return {}
    starts = days.within(queue, spell, days.facts.starts, "starts")
    runs = days.within(queue, spell, days.facts.attempts, "runs")
    running = days.of(days.facts.samples, spell.day, queue).get("running") or 0
    missing = max(0, starts - runs - running)
    is_explained = counts.has_unknown_gap or not counts.is_settled
    return {
        "starts_without_end_proven": 0 if is_explained else missing,
        "starts_without_end_maybe": missing if is_explained else 0,
    }


def _of_others(lake: Lake, day: str, queues: Collection[str]) -> list[Row]:
    """What earlier audits of other queues said of the day."""
    known = lake.rows(GOLD_AUDIT.name, GOLD_AUDIT.names, day).to_pylist()
    return [row for row in known if row["queue"] not in queues]


def _replace(lake: Lake, day: str, rows: Sequence[Row]) -> None:
    table = pa.Table.from_pylist([dict(row) for row in rows], GOLD_AUDIT.arrow)
    files = write_table(lake.path, GOLD_AUDIT.name, table, _TAG)
    before = lake.relative(GOLD_AUDIT.name, lake.files(GOLD_AUDIT.name, day))
    lake.commit(Change(table=GOLD_AUDIT.name, adds=files, removes=before))
