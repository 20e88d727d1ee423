"""Makes tables of events: bronze rows, and attempts folded from the events of a job."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.columns import TIMESTAMP, has_text, micros, moments_ms, where
from chasquimq.spark.lake.tables import FOLDED_ATTEMPTS, SILVER_OPEN
from chasquimq.wire.new_job import ulid_ms

_ULID: Final = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"
_ULID_TIME_CHARS: Final = 10
_ULID_REST: Final = "0" * 16
NOTHING, ACTIVE, FAILED, COMPLETED, RETRY, DLQ = range(-1, 5)
LIFE: Final = pa.array(["active", "failed", "completed", "retry-scheduled", "dlq"])
_COMPLETED, _RETRIED, _SNOOZED, _DEAD, _REJECTED = range(5)
_OUTCOMES: Final = pa.array(["completed", "retried", "snoozed", "dead", "rejected"])
# Arrays of numpy; its types say little about what is in them.
Numbers = Any


class Folded(NamedTuple):
    """Attempts that ended, what is still open, and ends whose beginning is elsewhere."""

    attempts: pa.RecordBatch
    opened: pa.RecordBatch
    loose: pa.RecordBatch


def fold_events(events: pa.RecordBatch, *, is_all: bool) -> Folded:
    """Fold events of any number of jobs, in any order.

    `is_all`: there is nothing before these events, so that an end without its start is an attempt
    too, and nothing is loose.
    """
    is_known = pc.and_(has_text(events, "job_id"), pc.is_in(events.column("event"), LIFE))
    known = events.select(SILVER_OPEN.names).filter(is_known)
    chain = EventChain(known)
    is_end = chain.kind >= COMPLETED
    is_resolved = is_end if is_all else is_end & chain.has_beginning()
    return Folded(
        _attempts(known, chain, is_resolved),
        known.take(pa.array(chain.open_places())),
        known.take(pa.array(chain.loose_places(is_end & ~is_resolved))),
    )


def rejected_entries(events: pa.RecordBatch) -> pa.RecordBatch:
    """Entries that could not be read, and so are no attempt of a job."""
    is_buried = pc.equal(events.column("event"), "dlq")
    lost = events.filter(pc.and_(is_buried, pc.invert(has_text(events, "job_id"))))
    known: dict[str, Any] = {
        "queue": lost.column("queue"),
        "worker": lost.column("worker"),
        "job_id": pc.fill_null(lost.column("job_id"), ""),
        "name": pc.fill_null(lost.column("name"), ""),
        "attempt": _same(0, pa.int32(), lost),
        "outcome": _same("rejected", pa.string(), lost),
        "ready_at": lost.column("ts"),
        "duration_us": _same(0, pa.int64(), lost),
        "deliveries": _same(1, pa.int32(), lost),
        "backoff_ms": _same(0, pa.int64(), lost),
        "error": lost.column("reason"),
        "event_date": lost.column("event_date"),
    }
    return _rows(known, lost.num_rows)


def _attempts(events: pa.RecordBatch, chain: EventChain, is_resolved: Any) -> pa.RecordBatch:
    """One row for each end, in the columns of attempts of the history."""
    places = chain.places(is_resolved)
    end, start = events.take(places.end), events.take(places.start)
    failure = events.take(places.failure)
    attempt, outcome = places.attempts(end, start, failure), places.outcomes
    enqueued_at = _enqueued_at(end)
    is_first = pc.less_equal(attempt, 1)
    duration_us = _duration_us(end, start, failure)
    known: dict[str, Any] = {
        "queue": end.column("queue"),
        "worker": pc.coalesce(end.column("worker"), start.column("worker")),
        "job_id": end.column("job_id"),
        "name": pc.fill_null(pc.coalesce(end.column("name"), start.column("name")), ""),
        "attempt": attempt,
        "outcome": outcome,
        "enqueued_at": enqueued_at,
        "ready_at": pc.coalesce(end.column("due"), where(is_first, enqueued_at)),
        "due_at": end.column("due"),
        "started_at": _started_at(end, start, failure, duration_us, outcome),
        "duration_us": pc.fill_null(duration_us, 0),
        "deliveries": pc.fill_null(end.column("deliveries"), 1),
        "backoff_ms": pc.fill_null(end.column("backoff_ms"), 0),
        "error": pc.coalesce(failure.column("reason"), end.column("reason")),
        "fingerprint": pc.coalesce(failure.column("fingerprint"), end.column("fingerprint")),
        "event_date": end.column("event_date"),
    }
    return _rows(known, end.num_rows)


def _duration_us(end: pa.RecordBatch, start: pa.RecordBatch, failure: pa.RecordBatch) -> pa.Array:
    """What the handler's end says; a snooze says nothing but that it came."""
    is_retry = pc.equal(end.column("event"), "retry-scheduled")
    since_start = pc.subtract(micros(end, "ts"), micros(start, "ts"))
    given = pc.coalesce(failure.column("duration_us"), end.column("duration_us"))
    return pc.coalesce(given, where(is_retry, since_start))


def _started_at(
    end: pa.RecordBatch,
    start: pa.RecordBatch,
    failure: pa.RecordBatch,
    duration_us: pa.Array,
    outcome: pa.Array,
) -> pa.Array:
    ended_us = pc.coalesce(micros(failure, "ts"), micros(end, "ts"))
    # An attempt of unknown run time began at its end at the latest.
    worked_out = pc.subtract(ended_us, pc.fill_null(duration_us, 0)).cast(TIMESTAMP)
    ran = pc.not_equal(outcome, "rejected")
    return where(ran, pc.coalesce(start.column("ts"), worked_out))


def _enqueued_at(end: pa.RecordBatch) -> pa.Array:
    """What the worker says, else what the id says; the ids of others say nothing."""
    given = end.column("enq")
    if not given.null_count:
        return given
    ids = end.column("job_id")
    is_ulid = pc.match_substring_regex(ids, _ULID)
    # Ids that were made in the same millisecond begin alike.
    heads = pc.utf8_slice_codeunits(ids, 0, _ULID_TIME_CHARS).dictionary_encode()
    made_ms = [ulid_ms(head + _ULID_REST) for head in heads.dictionary.to_pylist()]
    made_at = moments_ms(pa.array(made_ms, pa.int64())).take(heads.indices)
    return pc.coalesce(given, where(is_ulid, made_at))


def _same(value: object, kind: pa.DataType, events: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), events.num_rows)


def _rows(known: dict[str, Any], count: int) -> pa.RecordBatch:
    columns = [
        known[column.name].cast(column.arrow.type)
        if column.name in known
        else pa.nulls(count, column.arrow.type)
        for column in FOLDED_ATTEMPTS.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FOLDED_ATTEMPTS.arrow)


class Places(NamedTuple):
    """Where the parts of each attempt are among the events; a part that is not known has no place."""

    end: pa.Array
    start: pa.Array
    failure: pa.Array
    outcome_codes: Numbers

    @property
    def outcomes(self) -> pa.Array:
        return _OUTCOMES.take(pa.array(self.outcome_codes))

    def attempts(
        self, end: pa.RecordBatch, start: pa.RecordBatch, failure: pa.RecordBatch
    ) -> pa.Array:
        """The number of each run; what never ran has the number 0, as in the history."""
        ended = pc.coalesce(failure.column("attempt"), end.column("attempt"))
        snoozed = pc.fill_null(start.column("attempt"), 0)
        is_snoozed = pa.array(self.outcome_codes == _SNOOZED)
        is_rejected = pa.array(self.outcome_codes == _REJECTED)
        ran = pc.if_else(is_snoozed, snoozed, pc.fill_null(ended, 1))
        return pc.if_else(is_rejected, pa.scalar(0, pa.int32()), ran)


class EventChain:
    """Events sorted by job and then by their place in the stream."""

    def __init__(self, events: pa.RecordBatch) -> None:
        jobs = _job_codes(events)
        self._order = np.lexsort((_numbers(events, "id_seq"), _numbers(events, "id_ms"), jobs))
        jobs = jobs[self._order]
        self.kind: Numbers = _kinds(events)[self._order]
        self._attempt = _numbers(events, "attempt")[self._order]
        same = jobs[1:] == jobs[:-1]
        self._before = _shifted(self.kind, 1, same)
        self._after = _shifted(self.kind, -1, same)
        long_same = same[1:] & same[:-1]
        self._long_before = _shifted(self.kind, 2, long_same)
        self._long_after = _shifted(self.kind, -2, long_same)

    def has_beginning(self) -> Numbers:
        """Whether an end has all that it goes with here."""
        is_outcome = (self.kind == RETRY) | (self.kind == DLQ)
        began = self._began()
        return (self._is_started() & began) | (
            self._is_failure() & is_outcome & self._was_started()
        )

    def open_places(self) -> Numbers:
        """Where the starts and failures are whose end has not come."""
        is_last = self._after == NOTHING
        is_failing = (self._after == FAILED) & (self._long_after == NOTHING)
        is_open_start = (self.kind == ACTIVE) & (is_last | is_failing)
        is_open = is_open_start | ((self.kind == FAILED) & is_last)
        return np.sort(self._order[is_open])

    def loose_places(self, is_unresolved: Numbers) -> Numbers:
        """Where the ends are that lack their beginning, each with the failure that led to it."""
        awaits_end = _next(is_unresolved) & (self._after != NOTHING)
        return np.sort(self._order[is_unresolved | ((self.kind == FAILED) & awaits_end)])

    def places(self, is_resolved: Numbers) -> Places:
        """The parts of the attempts that these ends close."""
        at = np.flatnonzero(is_resolved)
        kind = self.kind[at]
        is_outcome = kind != COMPLETED
        failed = (self._is_failure()[at]) & is_outcome
        started = (self._is_started() & self._began())[at]
        was_started = failed & self._was_started()[at]
        start = np.where(started, at - 1, np.where(was_started, at - 2, -1))
        return Places(
            pa.array(self._order[at]),
            self._place(start),
            self._place(np.where(failed, at - 1, -1)),
            _outcome_codes(kind, failed),
        )

    def _place(self, sorted_places: Numbers) -> pa.Array:
        return pa.array(self._order[sorted_places], mask=sorted_places < 0)

    def _is_started(self) -> Numbers:
        return self._before == ACTIVE

    def _is_failure(self) -> Numbers:
        return self._before == FAILED

    def _was_started(self) -> Numbers:
        return self._long_before == ACTIVE

    def _began(self) -> Numbers:
        """A run that completed was started under the same number, else its start was lost."""
        before = np.roll(self._attempt, 1)
        is_same = (before == self._attempt) | (before < 0) | (self._attempt < 0)
        return is_same | (self.kind != COMPLETED)


def _next(flags: Numbers) -> Numbers:
    """Of each place, whether the next one is flagged; what follows the last is another job's."""
    return np.roll(flags, -1)


def _outcome_codes(kind: Numbers, failed: Numbers) -> Numbers:
    return np.select(
        [kind == COMPLETED, (kind == RETRY) & failed, kind == RETRY, failed],
        [_COMPLETED, _RETRIED, _SNOOZED, _DEAD],
        _REJECTED,
    )


def _kinds(events: pa.RecordBatch) -> Numbers:
    return pc.index_in(events.column("event"), LIFE).to_numpy(zero_copy_only=False)


def _job_codes(events: pa.RecordBatch) -> Numbers:
    queues = events.column("queue").dictionary_encode()
    jobs = events.column("job_id").dictionary_encode()
    codes = jobs.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes * max(1, len(queues.dictionary)) + queues.indices.to_numpy(zero_copy_only=False)


def _numbers(events: pa.RecordBatch, name: str) -> Numbers:
    return pc.fill_null(events.column(name), -1).to_numpy(zero_copy_only=False)


def _shifted(kinds: Numbers, by: int, same: Numbers) -> Numbers:
    """The kind so many places before, or after; nothing where that is another job."""
    moved = np.full(len(kinds), NOTHING, kinds.dtype)
    if by > 0:
        moved[by:] = np.where(same, kinds[:-by], NOTHING)
    else:
        moved[:by] = np.where(same, kinds[-by:], NOTHING)
    return moved
