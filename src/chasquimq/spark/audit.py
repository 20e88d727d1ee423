"""The audit: rows against the server's own counters, day by day, and what is odd about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from chasquimq.model.completeness import DayCounts, Verdict, judge_days
from chasquimq.spark.audit_facts import AuditFacts
from chasquimq.spark.channels import EVENTS, HISTORY
from chasquimq.spark.lake import Change, Lake
from chasquimq.spark.lake_files import write_table
from chasquimq.spark.table_schemas import GOLD_AUDIT

_TAG: Final = "audit"
# A row of the history comes up to two seconds after its attempt ended.
_QUIET: Final = timedelta(seconds=2.5)
_DAYS: Final = 2

Row = Mapping[str, Any]


def audit(
    lake: Lake,
    channels: Mapping[str, str],
    alive: Collection[str],
    days: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Judge days again, the last two if none are named; the answer is the rows it made.

    `alive` are the workers that the server hears of: the runs of all others have an open end.
    """
    chosen = sorted(days or lake.days("gold_backlog")[-_DAYS:])
    facts = AuditFacts(lake)
    try:
        open_runs = _open_runs(facts, alive)
        pictures = [_DayPicture(facts, day, open_runs) for day in chosen]
    finally:
        facts.close()
    rows = [row for queue, channel in channels.items() for row in _rows(queue, channel, pictures)]
    for day in chosen:
        _replace(lake, day, [row for row in rows if row[_DAY] == date.fromisoformat(day)])
    return rows


_DAY: Final = "event_date"


class _DayPicture:
    """All facts of one day, queue by queue."""

    def __init__(
        self, facts: AuditFacts, day: str, open_runs: Mapping[tuple[str, str], int]
    ) -> None:
        self.day = day
        self.attempts = facts.attempts(day)
        self.ends = facts.ends(day)
        self.skewed = facts.skewed(day)
        self.starts = facts.starts(day)
        self.gaps = facts.gaps(day)
        self.samples = facts.samples(day)
        self._first_day = facts.first_sampled()
        self._rows_until = facts.rows_until(day) if day in self._first_day.values() else {}
        self._open_runs = open_runs

    def counts(self, queue: str) -> DayCounts:
        gaps, attempts = self.gaps.get(queue, {}), self.attempts.get(queue, {})
        is_first = self._first_day.get(queue) == self.day
        rows = (self._rows_until if is_first else self.attempts).get(queue, {})
        return DayCounts(
            queue=queue,
            day=self.day,
            server_finished=_server_finished(self.samples.get(queue), is_first=is_first),
            rows_finished=rows.get("rows_finished", 0),
            rows_lost=gaps.get("rows_lost", 0),
            unproven=attempts.get("unproven", 0),
            # Whoever was killed took the rows of its last moments along.
            has_unknown_gap=bool(gaps.get("has_unknown_gap")) or self.open_runs(queue) > 0,
            is_settled=self._is_settled(queue),
        )

    def open_runs(self, queue: str) -> int:
        return self._open_runs.get((queue, self.day), 0)

    def _is_settled(self, queue: str) -> bool:
        sample = self.samples.get(queue)
        if sample is None:
            return False
        if sample["sampled_at"].date().isoformat() < datetime.now(UTC).date().isoformat():
            return True
        moved_at = sample["moved_at"]
        is_quiet = moved_at is None or sample["sampled_at"] - moved_at >= _QUIET
        return is_quiet and not sample["backlog"]


def _rows(queue: str, channel: str, pictures: Sequence[_DayPicture]) -> list[dict[str, Any]]:
    counts = [picture.counts(queue) for picture in pictures]
    verdicts = judge_days(counts)
    return [
        _row(picture, one, verdict, channel)
        for picture, one, verdict in zip(pictures, counts, verdicts, strict=True)
        if queue in picture.attempts or queue in picture.samples or queue in picture.gaps
    ]


def _row(picture: _DayPicture, counts: DayCounts, verdict: Verdict, channel: str) -> dict[str, Any]:
    queue = counts.queue
    attempts, ends = picture.attempts.get(queue, {}), picture.ends.get(queue, {})
    return {
        "queue": queue,
        _DAY: date.fromisoformat(counts.day),
        "channel": channel,
        "audited_at": datetime.now(UTC),
        "server_finished": counts.server_finished,
        "rows_finished": counts.rows_finished,
        "rows_lost": counts.rows_lost,
        "entries_lost": picture.gaps.get(queue, {}).get("entries_lost", 0),
        "missing_proven": verdict.missing_proven,
        "missing_maybe": verdict.missing_maybe,
        "surplus": verdict.surplus,
        "is_settled": counts.is_settled,
        "jobs_with_two_ends": ends.get("jobs_with_two_ends", 0),
        "ends_after_dlq": ends.get("ends_after_dlq", 0),
        "redeliveries": attempts.get("redeliveries", 0),
        **(_of_history(picture, queue) if channel == HISTORY else {}),
        **(_of_events(picture, counts) if channel == EVENTS else {}),
    }


def _of_history(picture: _DayPicture, queue: str) -> dict[str, Any]:
    """What only the history tells."""
    attempts = picture.attempts.get(queue, {})
    return {
        "open_runs": picture.open_runs(queue),
        "stale": attempts.get("stale", 0),
        "unproven": attempts.get("unproven", 0),
        "skewed_clocks": picture.skewed.get(queue, {}).get("skewed_clocks", 0),
    }


def _of_events(picture: _DayPicture, counts: DayCounts) -> dict[str, Any]:
    """What only the events tell; where starts are not told, nobody can miss an end."""
    starts = picture.starts.get(counts.queue, {}).get("starts")
    if starts is None:
        return {}
    running = (picture.samples.get(counts.queue) or {}).get("running") or 0
    runs = picture.attempts.get(counts.queue, {}).get("runs", 0)
    missing = max(0, starts - runs - running)
    is_explained = counts.has_unknown_gap
    return {
        "starts_without_end_proven": 0 if is_explained else missing,
        "starts_without_end_maybe": missing if is_explained else 0,
    }


def _server_finished(sample: Row | None, *, is_first: bool) -> int | None:
    if sample is None or sample["breaks_off"]:
        return None
    if not sample["begins_unknown"]:
        return sample["finished"]
    # The first look of all: whatever had left before it counts for this day, as its rows do.
    if not is_first or sample["first_left"] is None:
        return None
    return sample["first_left"] + sample["finished"]


def _open_runs(facts: AuditFacts, alive: Collection[str]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for run in facts.runs():
        if run["worker"] not in alive:
            key = (run["queue"], run["day"].isoformat())
            counts[key] = counts.get(key, 0) + 1
    return counts


def _replace(lake: Lake, day: str, rows: Sequence[Row]) -> None:
    table = pa.Table.from_pylist([dict(row) for row in rows], GOLD_AUDIT.arrow)
    files = write_table(lake.path, GOLD_AUDIT.name, table, _TAG)
    before = lake.relative(GOLD_AUDIT.name, lake.files(GOLD_AUDIT.name, day))
    lake.commit(Change(table=GOLD_AUDIT.name, adds=files, removes=before))
