"""Audits the lake: compares rows with the server's own counters, day by day."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa

from chasquimq.spark.lake.checkpoints import own_folder
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.lake.tables import GOLD_AUDIT
from chasquimq.spark.pipeline.audit.facts import AuditFacts, Look
from chasquimq.spark.pipeline.audit.read_progress import Standing
from chasquimq.spark.pipeline.audit.runs import FoundDead, OpenRun, open_runs
from chasquimq.spark.pipeline.channels import EVENTS, HISTORY
from chasquimq.wire.history import DayCounts, DayVerdict, judge_days

_TAG: Final = "audit"
_DAYS: Final = 2
_DAY: Final = "event_date"

Row = Mapping[str, Any]
# A row of the history comes up to two seconds after its attempt ended.
_QUIET: Final = timedelta(seconds=2.5)
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
ByQueue = Mapping[str, Row]
# What the facts are asked about a day.
Question = Callable[[str], ByQueue]


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
    windows = [days.window(queue, day) for day in compared]
    return [
        _row(days, window, one, verdict, channel)
        for window, one, verdict in zip(windows, counts, verdicts, strict=True)
        if window is not None
    ]


def _row(
    days: Days, window: AuditWindow, counts: DayCounts, verdict: DayVerdict, channel: str
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
        "rows_lost": days.reported(queue, window, "rows_lost"),
        "entries_lost": days.reported(queue, window, "entries_lost"),
        "missing_proven": verdict.missing_proven,
        "missing_maybe": verdict.missing_maybe,
        "surplus": verdict.surplus,
        "is_settled": counts.is_settled,
        "jobs_with_two_ends": ends.get("jobs_with_two_ends", 0),
        "ends_after_dlq": ends.get("ends_after_dlq", 0),
        "redeliveries": days.of(days.facts.attempts, day, queue).get("redeliveries", 0),
        **(_of_history(days, window, queue) if channel == HISTORY else {}),
        **(_of_events(days, window, counts) if channel == EVENTS else {}),
    }


def _of_history(days: Days, window: AuditWindow, queue: str) -> dict[str, Any]:
    """What only the history says."""
    attempts = days.of(days.facts.attempts, window.day, queue)
    return {
        "open_runs": days.open_runs(queue, window),
        "stale": attempts.get("stale", 0),
        "unproven": attempts.get("unproven", 0),
        "skewed_clocks": days.of(days.facts.skewed, window.day, queue).get("skewed_clocks", 0),
    }


def _of_events(days: Days, window: AuditWindow, counts: DayCounts) -> dict[str, Any]:
    """What only the events say; where starts are not reported, no end can be missed."""
    queue = counts.queue
    if not days.of(days.facts.starts, window.day, queue):
        return {}
    starts = days.within(queue, window, days.facts.starts, "starts")
    runs = days.within(queue, window, days.facts.attempts, "runs")
    running = days.of(days.facts.samples, window.day, queue).get("running") or 0
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


class AuditWindow(NamedTuple):
    """The days of a span: that of the look before it, those without a look, and its own."""

    before: str | None
    between: Sequence[str]
    day: str
    since: datetime
    until: datetime

    @property
    def own(self) -> list[str]:
        """The days that are reported in this one's row."""
        return [*self.between, self.day]


class Days:
    """All facts of all days that are judged; each is asked for once."""

    def __init__(
        self, facts: AuditFacts, runs: Sequence[OpenRun], standing: Standing, now: datetime
    ) -> None:
        self.facts = facts
        self._runs = runs
        self._standing = standing
        self._now = now
        self._known: dict[tuple[Question, str], ByQueue] = {}

    @cached_property
    def looks(self) -> dict[str, dict[str, Look]]:
        return self.facts.looks()

    def of(self, ask: Question, day: str, queue: str) -> Row:
        """Facts of a kind about a queue on a day; none where there are none."""
        if (ask, day) not in self._known:
            self._known[ask, day] = ask(day)
        return self._known[ask, day].get(queue, {})

    def window(self, queue: str, day: str) -> AuditWindow | None:
        """What the day is judged over; None: there was no look on it."""
        looks = self.looks.get(queue, {})
        if day not in looks:
            return None
        before = max((one for one in looks if one < day), default=None)
        between = self.facts.days_between(before or "", day)
        since = _BEGINNING if before is None else looks[before].last_at
        return AuditWindow(before, between, day, since, looks[day].last_at)

    def counts(self, queue: str, day: str) -> DayCounts:
        """What is compared."""
        window = self.window(queue, day)
        if window is None:
            rows = self.of(self.facts.attempts, day, queue).get("rows_finished", 0)
            return DayCounts(queue=queue, day=day, server_finished=None, rows_finished=rows)
        return DayCounts(
            queue=queue,
            day=day,
            server_finished=self._server_finished(queue, window),
            rows_finished=self.within(queue, window, self.facts.attempts, "rows_finished"),
            rows_lost=self.reported(queue, window, "rows_lost") + self._late(queue, window),
            unproven=self.within(queue, window, self.facts.attempts, "unproven"),
            unobserved=self._unobserved(queue, window),
            beyond=self._beyond(queue, window),
            has_unknown_gap=self._has_unknown_gap(queue, window),
            is_settled=self._is_settled(queue, day),
        )

    def within(self, queue: str, window: AuditWindow, ask: Question, figure: str) -> int:
        """How many there were from the look before to the look that ends the span."""
        last: Row = {} if window.before is None else self.of(ask, window.before, queue)
        count: int = last.get(figure, 0) - last.get(f"{figure}_by", 0)
        count += sum(self.of(ask, one, queue).get(figure, 0) for one in window.between)
        return count + self.of(ask, window.day, queue).get(f"{figure}_by", 0)

    def reported(self, queue: str, window: AuditWindow, figure: str) -> int:
        """How much the ledger of losses says."""
        return sum(self.of(self.facts.gaps, day, queue).get(figure, 0) for day in window.own)

    def open_runs(self, queue: str, window: AuditWindow) -> int:
        """Runs that fell silent on these days and never closed."""
        last_days = [run.last_at.date().isoformat() for run in self._runs if run.queue == queue]
        return sum(day in window.own for day in last_days)

    def _server_finished(self, queue: str, window: AuditWindow) -> int | None:
        sample = self.of(self.facts.samples, window.day, queue)
        if not sample or sample["breaks_off"]:
            return None
        if not sample["begins_unknown"]:
            return sample["finished"]
        # The first look of all: whatever had left before it counts for this day, as its rows do.
        if window.before is not None or sample["first_left"] is None:
            return None
        return sample["first_left"] + sample["finished"]

    def _unobserved(self, queue: str, window: AuditWindow) -> int:
        """What left before the first look and has no row: it may be older than the channel."""
        sample = self.of(self.facts.samples, window.day, queue)
        if window.before is not None or not sample or sample["first_left"] is None:
            return 0
        ask = self.facts.attempts
        rows = sum(self.of(ask, one, queue).get("rows_finished", 0) for one in window.between)
        rows += self.of(ask, window.day, queue).get("rows_finished_first", 0)
        return max(0, sample["first_left"] - rows)

    def _beyond(self, queue: str, window: AuditWindow) -> int:
        """Rows behind the last look of all; of any other, they are what the next day has too many."""
        if window.day != max(self.looks[queue]):
            return 0
        rows = self.of(self.facts.attempts, window.day, queue)
        return rows.get("rows_finished", 0) - rows.get("rows_finished_by", 0)

    def _late(self, queue: str, window: AuditWindow) -> int:
        return self._before(queue, window).get("rows_lost_late", 0)

    def _has_unknown_gap(self, queue: str, window: AuditWindow) -> bool:
        # A worker that was killed took the rows of its last moments along.
        if any(
            run.queue == queue and run.may_explain(window.since, window.until + _QUIET)
            for run in self._runs
        ):
            return True
        is_late = self._before(queue, window).get("has_unknown_gap_late", False)
        return is_late or self.reported(queue, window, "has_unknown_gap") > 0

    def _before(self, queue: str, window: AuditWindow) -> Row:
        return {} if window.before is None else self.of(self.facts.gaps, window.before, queue)

    def _is_settled(self, queue: str, day: str) -> bool:
        sample = self.of(self.facts.samples, day, queue)
        read_until = self._standing.read_until.get(queue)
        if not sample or read_until is None:
            return False
        sampled_at = sample["sampled_at"]
        if day < self._now.date().isoformat():
            return min(read_until, self._now) >= sampled_at + _QUIET
        moved_at = sample["moved_at"]
        is_quiet = moved_at is None or sampled_at - moved_at >= _QUIET
        return is_quiet and not sample["backlog"] and read_until >= sampled_at
