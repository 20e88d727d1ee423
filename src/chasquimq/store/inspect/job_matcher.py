"""Recognises one job in whatever the server holds of it: outcomes, entries, members and events."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from chasquimq.errors import DecodeError
from chasquimq.model.retry import handler_wait
from chasquimq.model.snapshot import JobState, State
from chasquimq.store.inspect.pages import DuePages, PageSize
from chasquimq.wire.envelope import Envelope, decode_envelope, read_extras
from chasquimq.wire.history import AttemptOutcome, AttemptRow, decode_history
from chasquimq.wire.outcome import COMPLETED, DEAD, StoredOutcome, decode_outcome
from chasquimq.wire.payload import decode_payload
from chasquimq.wire.stream_entry import (
    decode_dlq,
    first_values,
    read_fields,
    read_uint,
    split_member,
)

if TYPE_CHECKING:
    from chasquimq.store.inspect.pages import RawEntry, RawMember, ReadStore
    from chasquimq.wire.keys import QueueKeys

# What is longer is not decoded along the way: a caller that asks where a job is may not want its data.
DECODED_BYTES_MAX = 1024 * 1024
# What a last attempt says of its job; others come from attempts that did not count.
_STATES: Final[dict[int, State]] = {
    AttemptOutcome.COMPLETED: "completed",
    AttemptOutcome.DEAD: "dead",
    AttemptOutcome.REJECTED: "dead",
    AttemptOutcome.RETRIED: "unknown",
    AttemptOutcome.SNOOZED: "unknown",
}


class JobMatcher:
    """Turns bytes into the state of one job; None where they are not of this job."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        # Every encoding of an envelope holds the id's own bytes, so only few are decoded.
        self._needle = job_id.encode()

    def outcome_in(self, raw: bytes | None) -> StoredOutcome | None:
        """The outcome in these bytes; None where they make no sense."""
        try:
            outcome = None if raw is None else decode_outcome(raw)
        except DecodeError:
            return None
        return outcome if outcome is not None and outcome.status in (COMPLETED, DEAD) else None

    def in_outcome(self, outcome: StoredOutcome) -> JobState:
        died_ms = read_uint(outcome.dlq_id.partition("-")[0].encode())
        return JobState(
            job_id=self._job_id,
            state="completed" if outcome.status == COMPLETED else "dead",
            source="outcome",
            name=outcome.name or None,
            attempt=outcome.attempt or None,
            finished_at_ms=outcome.finished_ms or died_ms,
            reason=outcome.reason or None,
            error=outcome.error or None,
        )

    def in_stream(self, entry: RawEntry) -> JobState | None:
        entry_id, fields = entry
        if not self._is_in(fields):
            return None
        found = read_fields(fields)
        envelope = self._own(found.payload)
        if envelope is None:
            return None
        return JobState(
            job_id=self._job_id,
            state="ready",
            source="stream",
            name=found.name,
            attempt=envelope.attempt,
            entry_id=entry_id.decode(),
            due_ms=found.due_ms,
            ready_at_ms=read_uint(entry_id.partition(b"-")[0]),
            **_contents(envelope),
        )

    def in_dlq(self, entry: RawEntry) -> JobState | None:
        if not self._is_in(entry[1]):
            return None
        dead = decode_dlq(*entry)
        envelope = self._own(dead.payload)
        if envelope is None:
            return None
        buried_ms = read_uint(dead.entry_id.partition("-")[0].encode())
        return JobState(
            job_id=self._job_id,
            state="dead",
            source="dlq",
            name=dead.name,
            attempt=envelope.attempt if dead.attempt is None else dead.attempt,
            entry_id=dead.entry_id,
            ready_at_ms=read_uint(dead.source_id.partition("-")[0].encode()),
            finished_at_ms=buried_ms if dead.failed_at_ms is None else dead.failed_at_ms,
            reason=dead.reason,
            error=dead.error or dead.detail,
            traceback=dead.traceback_text or None,
            **_contents(envelope),
        )

    def in_delayed(self, scored: RawMember) -> JobState | None:
        member, score = scored
        if self._needle not in member:
            return None
        try:
            name, raw = split_member(member)
        except DecodeError:
            return None
        envelope = self._own(raw)
        if envelope is None:
            return None
        return JobState(
            job_id=self._job_id,
            state="delayed",
            source="delayed",
            name=name,
            attempt=envelope.attempt,
            due_ms=_due_ms(score),
            **handler_wait(name, read_extras(raw)),
            **_contents(envelope),
        )

    def in_history(self, entry: RawEntry) -> JobState | None:
        """What the last attempt in an entry of the history says of the job."""
        if not self._is_in(entry[1]):
            return None
        try:
            read = decode_history(entry[1])
        except DecodeError:
            return None
        columns = read.columns
        if columns is None:
            return None
        places = [at for at, job_id in enumerate(columns.job_ids) if job_id == self._job_id]
        states = [_attempted(columns.row(at), read.worker) for at in places]
        return next((one for one in reversed(states) if one is not None), None)

    def _is_in(self, fields: list[bytes]) -> bool:
        return any(self._needle in part for part in fields)

    def _own(self, raw: bytes | None) -> Envelope | None:
        try:
            envelope = None if raw is None else decode_envelope(raw)
        except DecodeError:
            return None
        return envelope if envelope is not None and envelope.id == self._job_id else None


def joined(state: JobState, past: JobState) -> JobState:
    """The state with what only the history knows of the attempt that it ended with."""
    known = asdict(state)
    more = {key: value for key, value in asdict(past).items() if value is not None}
    missing = {key: value for key, value in more.items() if known[key] is None}
    return replace(state, **missing)


def _attempted(row: AttemptRow, worker: str) -> JobState | None:
    state = _STATES.get(row.outcome)
    if state is None:
        return None
    started_us = row.started_at_us
    return JobState(
        job_id=row.job_id,
        state=state,
        source="history",
        name=row.name,
        attempt=row.attempt or None,
        worker=worker,
        created_at_ms=row.enqueued_at_ms,
        due_ms=row.due_ms,
        ready_at_ms=row.ready_at_ms,
        started_at_ms=None if started_us is None else started_us // 1_000,
        finished_at_ms=None if started_us is None else (started_us + row.duration_us) // 1_000,
        duration_us=None if started_us is None else row.duration_us,
        error=_error_text(row),
    )


def _error_text(row: AttemptRow) -> str | None:
    return f"{row.error_type}: {row.error}" if row.error else row.error_type


def _contents(envelope: Envelope) -> dict[str, Any]:
    """What a job carries: its data as callers that ask for the job get it."""
    size_bytes = len(envelope.payload)
    known = {"created_at_ms": envelope.created_at_ms, "payload_bytes": size_bytes}
    if size_bytes > DECODED_BYTES_MAX:
        return known
    try:
        return known | {"data": decode_payload(envelope.payload), "is_decoded": True}
    except DecodeError:
        return known


def _due_ms(score: bytes) -> int | None:
    due_ms = float(score)
    return int(due_ms) if math.isfinite(due_ms) else None


class JobBytes:
    """Reads one queue and moves nothing."""

    def __init__(self, keys: QueueKeys, reads: ReadStore) -> None:
        self._keys = keys
        self._reads = reads

    async def envelope(self, state: JobState) -> bytes | None:
        """The bytes of the job; None where it is there no more, or left nothing to read."""
        if state.state == "delayed":
            return await self._delayed(state)
        if state.entry_id is None:
            return None
        key = self._keys.dlq if state.state == "dead" else self._keys.stream
        (entries,) = await self._reads.ask(("XRANGE", key, state.entry_id, state.entry_id))
        return first_values(entries[0][1]).get(b"d") if entries else None

    async def _delayed(self, state: JobState) -> bytes | None:
        if state.due_ms is None:
            return None
        matcher = JobMatcher(state.job_id)
        pages = DuePages(self._reads, self._keys.delayed, PageSize(), state.due_ms)
        while (page := await pages.next()) is not None:
            for member, score in page:
                if matcher.in_delayed((member, score)) is not None:
                    return _envelope(member)
        return None


def _envelope(member: bytes) -> bytes | None:
    try:
        return split_member(member)[1]
    except DecodeError:
        return None
