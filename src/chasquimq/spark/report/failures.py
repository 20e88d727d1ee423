"""Sections about what went wrong: failures by fingerprint, and what retries were worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from chasquimq.spark.query.failures import by_attempt, by_fingerprint, next_wave
from chasquimq.spark.query.queries import Answers
from chasquimq.spark.query.scope import Scope, newest_at
from chasquimq.spark.report.format import (
    clock_text,
    count_text,
    ms_text,
    name_text,
    share_text,
    shown,
)
from chasquimq.spark.report.grid import NAME, QUEUE, first_of, grid, labels
from chasquimq.spark.report.shape import Bars, Column, Section, Series

BARS_MAX: Final = 12
_FAILURES: Final = (
    QUEUE,
    NAME,
    Column("reason", "error"),
    Column("failed", "failed", "count"),
    Column("dead", "dead", "count"),
    Column("run_ms", "time burnt", "ms"),
    Column("first_seen", "first seen", "moment"),
    Column("last_seen", "last seen", "moment"),
    Column("fingerprint", "fingerprint"),
)
_WORTH: Final = (
    QUEUE,
    NAME,
    Column("saved", "saved", "count"),
    Column("given_up", "dead anyway", "count"),
    Column("waste_ms", "time burnt", "ms"),
    Column("delay_ms", "delay added", "ms"),
)
_ATTEMPTS: Final = (
    QUEUE,
    NAME,
    Column("attempt", "attempt", "count"),
    Column("runs", "runs", "count"),
    Column("success_share", "succeeded", "share"),
    Column("run_ms", "time spent", "ms"),
    Column("added_delay_ms", "delay added", "ms"),
)


def failures_section(answers: Answers, scope: Scope, proof: str) -> Section:
    """Which errors there were, and what each of them cost."""
    rows = by_fingerprint(answers, scope)
    if not rows:
        return Section("failures", "Failures", absence="No attempt failed.", completeness=proof)
    return Section(
        "failures",
        "Failures",
        sentences=[_failures_sentence(rows)],
        grids=[grid(rows, *_FAILURES, what="kinds of failure")],
        drawings=[_failure_bars(rows)],
        completeness=proof,
    )


def retries_section(answers: Answers, scope: Scope, proof: str) -> Section:
    """Whether trying again pays: what it saved, what it cost, and what it could not save."""
    attempts = by_attempt(answers, scope)
    if not attempts:
        return Section("retries", "Retries", absence="Nothing was retried.", completeness=proof)
    burnt_ms = _burnt_ms(by_fingerprint(answers, scope))
    named = [(list(rows), burnt_ms[name]) for name, rows in groupby(attempts, key=_name_of)]
    # What was retried most comes first: a table and a drawing show only so many.
    named.sort(key=lambda one: _retried(one[0]), reverse=True)
    worth = [_worth(rows, waste_ms) for rows, waste_ms in named]
    ordered = [row for rows, _ in named for row in rows]
    return Section(
        "retries",
        "Retries: worth and waste",
        sentences=[_worth_sentence(worth), *_wave_sentences(answers, scope)],
        grids=[
            grid(worth, *_WORTH, title="What retries were worth", what="names"),
            grid(ordered, *_ATTEMPTS, title="Attempt by attempt", what="attempts"),
        ],
        drawings=[_worth_bars(worth)],
        completeness=proof,
    )


def _failures_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    failed = sum(row["failed"] for row in rows)
    first = rows[0]
    what = f"{name_text(first['name'])}, {shown(first['reason'] or 'no message', 80)}"
    if len(rows) == 1:
        return f"{count_text(failed)} attempts failed, all of one kind: {what}."
    share = share_text(first["failed"] / failed if failed else 0)
    return (
        f"{count_text(failed)} attempts failed, in {count_text(len(rows))} kinds; the commonest is "
        f"{share} of them: {what}."
    )


def _failure_bars(every: Sequence[Mapping[str, Any]]) -> Bars:
    rows = every[:BARS_MAX]
    return Bars(
        key="failures",
        title=first_of("Failed attempts by kind of failure", every, BARS_MAX),
        labels=[f"{at}. {label}" for at, label in enumerate(labels(rows, "name"), 1)],
        series=[
            Series("retried", "fair", [row["failed"] - row["dead"] for row in rows]),
            Series("dead", "bad", [row["dead"] for row in rows]),
        ],
        unit="attempts",
    )


def _name_of(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["queue"], row["name"]


def _burnt_ms(failures: Sequence[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    burnt: Counter[tuple[str, str]] = Counter()
    for row in failures:
        burnt[_name_of(row)] += row["run_ms"] or 0
    return burnt


def _retried(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["retried"] for row in rows)


def _worth(rows: Sequence[Mapping[str, Any]], waste_ms: float) -> dict[str, Any]:
    """All attempts of one name in one row."""
    again = [row for row in rows if row["attempt"] > 1]
    return {
        "queue": rows[0]["queue"],
        "name": rows[0]["name"],
        "saved": sum(row["completed"] for row in again),
        "given_up": sum(row["dead"] for row in again),
        "waste_ms": waste_ms,
        "delay_ms": sum(row["added_delay_ms"] or 0 for row in rows) or None,
    }


def _worth_sentence(worth: Sequence[Mapping[str, Any]]) -> str:
    saved, given_up = (sum(row[name] for row in worth) for name in ("saved", "given_up"))
    waste_ms = sum(row["waste_ms"] for row in worth)
    return (
        f"Retries saved {_jobs(saved)}; {_jobs(given_up)} died all the same. "
        f"Failed attempts took {ms_text(waste_ms)} of run time."
    )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count_text(count)} jobs"


def _wave_sentences(answers: Answers, scope: Scope) -> list[str]:
    now: datetime | None = newest_at(answers, scope.queues)
    wave = next_wave(answers, scope, now) if now else None
    if wave is None:
        return []
    return [f"The next wave: {_jobs(wave['jobs'])} come back at {clock_text(wave['wave_at'])}."]


def _worth_bars(every: Sequence[Mapping[str, Any]]) -> Bars:
    worth = every[:BARS_MAX]
    return Bars(
        key="retries",
        title=first_of("Jobs that were retried: saved, or dead all the same", every, BARS_MAX),
        labels=labels(worth, "name"),
        series=[
            Series("saved by a retry", "good", [row["saved"] for row in worth]),
            Series("dead all the same", "bad", [row["given_up"] for row in worth]),
        ],
        unit="jobs",
    )
