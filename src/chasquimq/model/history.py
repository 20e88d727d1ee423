"""Defines a row of the history, and checks how complete the history of a day is."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec


class AttemptOutcome(IntEnum):
    """How an attempt ended; the numbers are on the wire and never change.

    `rejected` never reached a handler. `snoozed` runs again and spends no attempt. `stale` came
    after another outcome of its job. `unproven`: the connection broke, so the server may or may
    not have counted it.
    """

    COMPLETED = 0
    RETRIED = 1
    DEAD = 2
    REJECTED = 3
    SNOOZED = 4
    STALE = 5
    UNPROVEN = 6

    @property
    def label(self) -> str:
        return self.name.lower()


def outcome_label(number: int) -> str:
    """Return the name of an outcome; one of a later version is shown by its number."""
    try:
        return AttemptOutcome(number).label
    except ValueError:
        return f"outcome-{number}"


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One finished attempt; None where its writer did not know, or the attempt never started.

    `enqueued_at_ms` is of the producer's clock, the other times are of the server's. `attempt`
    counts from 1, and is 0 where no handler saw the job. `deliveries` counts this one too.
    """

    job_id: str
    name: str
    attempt: int
    outcome: int
    enqueued_at_ms: int | None
    ready_at_ms: int | None
    due_ms: int | None
    started_at_us: int | None
    duration_us: int
    deliveries: int
    backoff_ms: int
    error_type: str | None = None
    error: str | None = None
    fingerprint: str | None = None


class DayCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one queue on one day; None where it is not known.

    `server_finished` is what left the stream by the server's own counter, `rows_finished` the rows
    about it. `has_unknown_gap`: entries are missing, and the number of their rows is not known.
    `untold` jobs left the stream before the first look at it, and may have no row; `beyond` are
    rows of a later time by a clock that may be ahead.
    """

    queue: str
    day: str
    server_finished: int | None
    rows_finished: int
    rows_lost: int = 0
    unproven: int = 0
    untold: int = 0
    beyond: int = 0
    has_unknown_gap: bool = False
    is_settled: bool = True


class DayVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is missing of a day: for certain, or explained by a known gap; or what is too much."""

    missing_proven: int | None
    missing_maybe: int | None
    surplus: int | None


def judge_days(days: Sequence[DayCounts]) -> list[DayVerdict]:
    """Judge the days of one queue, oldest first.

    A job that ends at midnight may be counted on one side of it and have its row on the other, so
    what is missing on one day and too much on the next, or the other way round, is neither.
    """
    left = [_difference(day) for day in days]
    for at in range(1, len(left)):
        left[at - 1], left[at] = _cancelled(left[at - 1], left[at])
    return [_verdict(day, missing) for day, missing in zip(days, left, strict=True)]


def _difference(day: DayCounts) -> int | None:
    return None if day.server_finished is None else day.server_finished - day.rows_finished


def _cancelled(first: int | None, second: int | None) -> tuple[int | None, int | None]:
    if first is None or second is None or first * second >= 0:
        return first, second
    shared = min(abs(first), abs(second))
    return (first - shared, second + shared) if first > 0 else (first + shared, second - shared)


def _verdict(day: DayCounts, missing: int | None) -> DayVerdict:
    if missing is None:
        return DayVerdict(missing_proven=None, missing_maybe=None, surplus=None)
    if missing <= 0:
        return DayVerdict(missing_proven=0, missing_maybe=0, surplus=-missing)
    known = day.rows_lost + day.unproven + day.untold + day.beyond
    maybe = missing if _may_all_be_explained(day) else min(missing, known)
    return DayVerdict(missing_proven=missing - maybe, missing_maybe=maybe, surplus=0)


def _may_all_be_explained(day: DayCounts) -> bool:
    return day.has_unknown_gap or not day.is_settled
