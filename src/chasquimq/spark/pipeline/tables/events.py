"""Events folded into attempts: Arrow in, Arrow out.

The events of a job are told in the order of the stream: `active`, then its end, which is
`completed`, or `failed` with what became of it (`retry-scheduled`, `dlq`), or `retry-scheduled`
alone where the handler only asked to come back. What has no end yet stays open.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.columns import TIMESTAMP, has_text, micros, moments_ms, where
from chasquimq.spark.lake.tables import FOLDED_ATTEMPTS, SILVER_OPEN
from chasquimq.spark.pipeline.tables.event_chain import COMPLETED, LIFE, EventChain
from chasquimq.wire.new_job import ulid_ms

_ULID: Final = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"
_ULID_TIME_CHARS: Final = 10
_ULID_REST: Final = "0" * 16


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
    is_told = pc.and_(has_text(events, "job_id"), pc.is_in(events.column("event"), LIFE))
    known = events.select(SILVER_OPEN.names).filter(is_told)
    chain = EventChain(known)
    is_end = chain.kind >= COMPLETED
    is_resolved = is_end if is_all else is_end & chain.has_beginning()
    return Folded(
        _attempts(known, chain, is_resolved),
        known.take(pa.array(chain.open_places())),
        known.take(pa.array(chain.loose_places(is_end & ~is_resolved))),
    )


def rejected_entries(events: pa.RecordBatch) -> pa.RecordBatch:
    """Entries that could not be read, and so are nobody's attempt."""
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
    """What the handler's end tells; a snooze tells nothing but that it came."""
    is_retry = pc.equal(end.column("event"), "retry-scheduled")
    since_start = pc.subtract(micros(end, "ts"), micros(start, "ts"))
    told = pc.coalesce(failure.column("duration_us"), end.column("duration_us"))
    return pc.coalesce(told, where(is_retry, since_start))


def _started_at(
    end: pa.RecordBatch,
    start: pa.RecordBatch,
    failure: pa.RecordBatch,
    duration_us: pa.Array,
    outcome: pa.Array,
) -> pa.Array:
    ended_us = pc.coalesce(micros(failure, "ts"), micros(end, "ts"))
    # Whose run time nobody knows began at its end at the latest.
    worked_out = pc.subtract(ended_us, pc.fill_null(duration_us, 0)).cast(TIMESTAMP)
    ran = pc.not_equal(outcome, "rejected")
    return where(ran, pc.coalesce(start.column("ts"), worked_out))


def _enqueued_at(end: pa.RecordBatch) -> pa.Array:
    """What the worker tells, else what the id tells; the ids of others tell nothing."""
    told = end.column("enq")
    if not told.null_count:
        return told
    ids = end.column("job_id")
    is_ulid = pc.match_substring_regex(ids, _ULID)
    # Ids that were made in the same millisecond begin alike.
    heads = pc.utf8_slice_codeunits(ids, 0, _ULID_TIME_CHARS).dictionary_encode()
    made_ms = [ulid_ms(head + _ULID_REST) for head in heads.dictionary.to_pylist()]
    made_at = moments_ms(pa.array(made_ms, pa.int64())).take(heads.indices)
    return pc.coalesce(told, where(is_ulid, made_at))


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
