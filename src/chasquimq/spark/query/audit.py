"""How much of the truth the tables hold: rows against the server's counters, and known losses."""

# ruff: noqa: S608  the SQL is our own, and names of queues in it are quoted
from __future__ import annotations

from datetime import date
from typing import Any, NamedTuple

from chasquimq.spark.lake.ledger import SEQUENCE
from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope
from chasquimq.spark.report.format import count_text, share_text


class Completeness(NamedTuple):
    """What is in the tables, what is missing from them, and what is in them twice.

    `is_proven`: the server's own counters say so; else it is what the channels say of themselves,
    and more may be missing. `on_the_way`: what had ended and was not read yet when they were
    compared. `since`: whole days from this one on were compared, where less was asked for.
    """

    rows: int
    missing: int
    is_proven: bool
    is_settled: bool
    on_the_way: int = 0
    unknown_gaps: int = 0
    surplus: int = 0
    since: date | None = None

    @property
    def share(self) -> float | None:
        """The share of all attempts that is there; None: there are none."""
        whole = self.rows + self.missing
        return self.rows / whole if whole else None

    @property
    def is_whole(self) -> bool:
        is_off = self.missing or self.unknown_gaps or self.surplus
        return self.is_proven and self.is_settled and not is_off

    def sentence(self) -> str:
        """How far an answer that rests on this can be trusted."""
        if self.share is None:
            return "nothing to compare yet"
        return self._verdict() + self._span()

    def _span(self) -> str:
        if self.since is None:
            return ""
        return f" (counted by whole days, all since {self.since}, not of this stretch alone)"

    def _verdict(self) -> str:
        if self.is_whole:
            return f"100 %, all {count_text(self.rows)} attempts that the server counted"
        if self.surplus:
            return f"not known, {_are(self.surplus)} there that the server did not count"
        if self.missing:
            return f"{share_text(self.share or 0)}, {_are(self.missing)} missing"
        if self.unknown_gaps:
            return f"not known, {_gaps_are(self.unknown_gaps)} of unknown size"
        return self._unproven()

    def _unproven(self) -> str:
        if not self.is_proven:
            return (
                f"no loss is known, but nothing else counted the {count_text(self.rows)} attempts"
            )
        if self.on_the_way:
            return f"nothing is missing so far; {_are(self.on_the_way)} still on the way"
        return "nothing is missing so far, but jobs waited or ran when it was counted"


def audits(answers: Answers, scope: Scope) -> list[dict[str, Any]]:
    """The last audit of each queue, day and channel; of whole days, as the server counts."""
    return answers.ask(f"""
        select * from gold_audit where {scope.by_day().where("event_date")}
        qualify row_number() over (
            partition by queue, event_date, channel order by audited_at desc) = 1
        order by queue, event_date, channel
    """)


def gaps(answers: Answers, scope: Scope) -> list[dict[str, Any]]:
    """The ledger of losses by queue, channel and unit, each loss once.

    An entry that is gone also leaves a hole in the numbers of its run: two witnesses of one loss,
    and of each day the larger count holds. `evidence` is what each of them says.
    """
    return answers.ask(f"""
        with causes as (
            select queue, channel, unit, cause, event_date, sum(lost)::bigint as lost,
                   count(*) filter (lost is null) as unknown, count(*) as gaps,
                   min(detected_at) as first_seen, max(detected_at) as last_seen
            from bronze_gaps where {scope.by_day().where("detected_at")}
            group by queue, channel, unit, cause, event_date
        ), days as (
            select queue, channel, unit, {_greater("lost")} as lost, {_greater("gaps")} as gaps
            from causes group by queue, channel, unit, event_date
        ), losses as (
            select queue, channel, unit, sum(lost)::bigint as lost, sum(gaps)::bigint as gaps
            from days group by queue, channel, unit
        ), witnesses as (
            select queue, channel, unit, cause, sum(lost)::bigint as reported,
                   sum(unknown)::bigint as unknown,
                   min(first_seen) as first_seen, max(last_seen) as last_seen
            from causes group by queue, channel, unit, cause
        )
        select queue, channel, {_joined_causes()} as cause, unit, any_value(lost) as lost,
               sum(unknown)::bigint as unknown, any_value(gaps) as gaps,
               min(first_seen) as first_seen, max(last_seen) as last_seen,
               map_from_entries(list((cause, reported) order by cause)) as evidence
        from witnesses join losses using (queue, channel, unit)
        group by queue, channel, unit order by queue, channel, unit
    """)


def completeness(answers: Answers, scope: Scope) -> Completeness:
    """One figure for all that lies in the scope."""
    audited = audits(answers, scope)
    ledger = gaps(answers, scope)
    days = scope.by_day()
    return Completeness(
        rows=sum(row["rows_finished"] or 0 for row in audited),
        missing=sum(map(_missing, audited)),
        is_proven=bool(audited) and all(row["server_finished"] is not None for row in audited),
        is_settled=all(row["is_settled"] for row in audited),
        on_the_way=sum(map(_on_the_way, audited)),
        unknown_gaps=sum(row["unknown"] for row in ledger),
        surplus=sum(row["surplus"] or 0 for row in audited if row["is_settled"]),
        since=None if days.since is None else days.since.date(),
    )


def _joined_causes() -> str:
    return f"string_agg(cause, ' and ' order by cause = '{SEQUENCE}', cause)"


def _greater(count: str) -> str:
    """What the numbers of the runs say, or all other witnesses together."""
    is_number = f"cause = '{SEQUENCE}'"
    by_number, by_others = (
        f"sum({count}) filter ({'' if is_it else 'not '}{is_number})" for is_it in (True, False)
    )
    return f"greatest({by_number}, {by_others})"


def _missing(audit: dict[str, Any]) -> int:
    """What the server counted and the tables lack; where it counts nothing, what was lost."""
    if audit["server_finished"] is None:
        return audit["rows_lost"] or 0
    maybe = 0 if _on_the_way(audit) else audit["missing_maybe"] or 0
    return (audit["missing_proven"] or 0) + maybe


def _on_the_way(audit: dict[str, Any]) -> int:
    """What may only not have been read yet; known losses are none of it."""
    if audit["is_settled"] or audit["server_finished"] is None:
        return 0
    return max(0, (audit["missing_maybe"] or 0) - (audit["rows_lost"] or 0))


def _gaps_are(count: int) -> str:
    return "1 gap is" if count == 1 else f"{count_text(count)} gaps are"


def _are(count: int) -> str:
    return "1 attempt is" if count == 1 else f"{count_text(count)} attempts are"
