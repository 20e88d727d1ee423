"""A queue on a day, as the audit sees it: what the server counted between two looks, and the rows.

Looks seldom fall on midnight, so a day is judged from the last look before it to its own last one,
and rows are counted in that very span. Days that nobody looked at belong to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple

from chasquimq.spark.pipeline.audit.facts import AuditFacts, Look
from chasquimq.spark.pipeline.audit.read_progress import Standing
from chasquimq.spark.pipeline.audit.runs import OpenRun
from chasquimq.wire.history import DayCounts

# A row of the history comes up to two seconds after its attempt ended.
_QUIET: Final = timedelta(seconds=2.5)
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)

Row = Mapping[str, Any]
ByQueue = Mapping[str, Row]
# What the facts are asked about a day.
Question = Callable[[str], ByQueue]


class Spell(NamedTuple):
    """The days of a span: that of the look before it, those that nobody looked at, and its own."""

    before: str | None
    between: Sequence[str]
    day: str
    since: datetime
    until: datetime

    @property
    def own(self) -> list[str]:
        """The days that are told of in this one's row."""
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

    def spell(self, queue: str, day: str) -> Spell | None:
        """What the day is judged over; None: nobody looked on it."""
        looks = self.looks.get(queue, {})
        if day not in looks:
            return None
        before = max((one for one in looks if one < day), default=None)
        between = self.facts.days_between(before or "", day)
        since = _BEGINNING if before is None else looks[before].last_at
        return Spell(before, between, day, since, looks[day].last_at)

    def counts(self, queue: str, day: str) -> DayCounts:
        """What is compared."""
        spell = self.spell(queue, day)
        if spell is None:
            rows = self.of(self.facts.attempts, day, queue).get("rows_finished", 0)
            return DayCounts(queue=queue, day=day, server_finished=None, rows_finished=rows)
        return DayCounts(
            queue=queue,
            day=day,
            server_finished=self._server_finished(queue, spell),
            rows_finished=self.within(queue, spell, self.facts.attempts, "rows_finished"),
            rows_lost=self.told(queue, spell, "rows_lost") + self._late(queue, spell),
            unproven=self.within(queue, spell, self.facts.attempts, "unproven"),
            untold=self._untold(queue, spell),
            beyond=self._beyond(queue, spell),
            has_unknown_gap=self._has_unknown_gap(queue, spell),
            is_settled=self._is_settled(queue, day),
        )

    def within(self, queue: str, spell: Spell, ask: Question, figure: str) -> int:
        """How many there were from the look before to the look that ends the span."""
        last: Row = {} if spell.before is None else self.of(ask, spell.before, queue)
        count: int = last.get(figure, 0) - last.get(f"{figure}_by", 0)
        count += sum(self.of(ask, one, queue).get(figure, 0) for one in spell.between)
        return count + self.of(ask, spell.day, queue).get(f"{figure}_by", 0)

    def told(self, queue: str, spell: Spell, figure: str) -> int:
        """How much the ledger of losses says."""
        return sum(self.of(self.facts.gaps, day, queue).get(figure, 0) for day in spell.own)

    def open_runs(self, queue: str, spell: Spell) -> int:
        """Runs that fell silent on these days and never closed."""
        last_days = [run.last_at.date().isoformat() for run in self._runs if run.queue == queue]
        return sum(day in spell.own for day in last_days)

    def _server_finished(self, queue: str, spell: Spell) -> int | None:
        sample = self.of(self.facts.samples, spell.day, queue)
        if not sample or sample["breaks_off"]:
            return None
        if not sample["begins_unknown"]:
            return sample["finished"]
        # The first look of all: whatever had left before it counts for this day, as its rows do.
        if spell.before is not None or sample["first_left"] is None:
            return None
        return sample["first_left"] + sample["finished"]

    def _untold(self, queue: str, spell: Spell) -> int:
        """What left before anybody looked and has no row: it may be older than the channel."""
        sample = self.of(self.facts.samples, spell.day, queue)
        if spell.before is not None or not sample or sample["first_left"] is None:
            return 0
        ask = self.facts.attempts
        rows = sum(self.of(ask, one, queue).get("rows_finished", 0) for one in spell.between)
        rows += self.of(ask, spell.day, queue).get("rows_finished_first", 0)
        return max(0, sample["first_left"] - rows)

    def _beyond(self, queue: str, spell: Spell) -> int:
        """Rows behind the last look of all; of any other, they are what the next day has too many."""
        if spell.day != max(self.looks[queue]):
            return 0
        rows = self.of(self.facts.attempts, spell.day, queue)
        return rows.get("rows_finished", 0) - rows.get("rows_finished_by", 0)

    def _late(self, queue: str, spell: Spell) -> int:
        return self._before(queue, spell).get("rows_lost_late", 0)

    def _has_unknown_gap(self, queue: str, spell: Spell) -> bool:
        # Whoever was killed took the rows of its last moments along.
        if any(
            run.queue == queue and run.may_explain(spell.since, spell.until + _QUIET)
            for run in self._runs
        ):
            return True
        is_late = self._before(queue, spell).get("has_unknown_gap_late", False)
        return is_late or self.told(queue, spell, "has_unknown_gap") > 0

    def _before(self, queue: str, spell: Spell) -> Row:
        return {} if spell.before is None else self.of(self.facts.gaps, spell.before, queue)

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
