"""The events of each job in a chain: what came before each of them, and what after."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NOTHING, ACTIVE, FAILED, COMPLETED, RETRY, DLQ = range(-1, 5)
LIFE: Final = pa.array(["active", "failed", "completed", "retry-scheduled", "dlq"])
_COMPLETED, _RETRIED, _SNOOZED, _DEAD, _REJECTED = range(5)
_OUTCOMES: Final = pa.array(["completed", "retried", "snoozed", "dead", "rejected"])

# Arrays of numpy; its types say little about what is in them.
Numbers = Any


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
