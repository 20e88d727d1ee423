"""Recognises one job in whatever the server holds of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from chasquimq.errors import DecodeError
from chasquimq.model.job_state import JobState
from chasquimq.model.verdict import handler_wait
from chasquimq.wire.codec import Envelope, decode_envelope, read_extras
from chasquimq.wire.delayed_member import split_member
from chasquimq.wire.outcome import COMPLETED, DEAD, decode_outcome
from chasquimq.wire.stream_entry import decode_dlq, read_fields

if TYPE_CHECKING:
    from chasquimq.store.reading import RawEntry, RawMember


class Sighting:
    """Turns bytes into the state of one job; None where they are not of this job."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        # Every spelling of an envelope holds the id's own bytes, so only few are decoded.
        self._needle = job_id.encode()

    def in_outcome(self, raw: bytes | None) -> JobState | None:
        try:
            outcome = None if raw is None else decode_outcome(raw)
        except DecodeError:
            return None
        if outcome is None or outcome.status not in (COMPLETED, DEAD):
            return None
        return JobState(
            job_id=self._job_id,
            state="completed" if outcome.status == COMPLETED else "dead",
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
            name=found.name,
            attempt=envelope.attempt,
            entry_id=entry_id.decode(),
        )

    def in_dlq(self, entry: RawEntry) -> JobState | None:
        if not self._is_in(entry[1]):
            return None
        dead = decode_dlq(*entry)
        envelope = self._own(dead.payload)
        if envelope is None:
            return None
        return JobState(
            job_id=self._job_id,
            state="dead",
            name=dead.name,
            attempt=envelope.attempt if dead.attempt is None else dead.attempt,
            entry_id=dead.entry_id,
            reason=dead.reason,
            error=dead.error or dead.detail,
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
            name=name,
            attempt=envelope.attempt,
            due_ms=_due_ms(score),
            **handler_wait(name, read_extras(raw)),
        )

    def _is_in(self, fields: list[bytes]) -> bool:
        return any(self._needle in part for part in fields)

    def _own(self, raw: bytes | None) -> Envelope | None:
        try:
            envelope = None if raw is None else decode_envelope(raw)
        except DecodeError:
            return None
        return envelope if envelope is not None and envelope.id == self._job_id else None


def _due_ms(score: bytes) -> int | None:
    due_ms = float(score)
    return int(due_ms) if math.isfinite(due_ms) else None
