"""Encodes and decodes small values beside the streams: outcomes, worker records, job contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.json_value import ToDict
from chasquimq.model.snapshot import WorkerRecord
from chasquimq.wire.envelope import split_envelope
from chasquimq.wire.payload import decode_payload

# ── outcomes ──────────────────────────────────────────────────────────────────────────────────────

COMPLETED = "completed"
DEAD = "dead"


class StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job ended; empty and 0 stand for what its writer did not know.

    `has_result` distinguishes an expired result from none. `attempt` counts all runs. `dlq_id` is the
    entry of a dead job in the DLQ; it begins with the time of death.
    """

    status: str
    has_result: bool = False
    reason: str = ""
    error: str = ""
    name: str = ""
    attempt: int = 0
    finished_ms: int = 0
    dlq_id: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_outcome = msgspec.msgpack.Decoder(StoredOutcome).decode


def encode_completed(name: str, attempt: int, finished_ms: int, *, has_result: bool) -> bytes:
    """The outcome of jobs that completed: the same for all of a name that end together."""
    return _encode(
        StoredOutcome(COMPLETED, has_result, name=name, attempt=attempt, finished_ms=finished_ms)
    )


def encode_dead(reason: str, error: str, name: str = "", attempt: int = 0) -> bytes:
    """The outcome of a job that ended in the DLQ, up to the value of its last field, `dlq_id`.

    The script that buries the job puts the id of its DLQ entry behind it, as a str 8.
    """
    fields: dict[str, str | int] = {"status": DEAD, "reason": reason, "error": error}
    fields |= {"name": name, "attempt": attempt, "dlq_id": ""}
    return _encode(fields)[:-1]


def decode_outcome(raw: bytes) -> StoredOutcome:
    """Read an outcome; fields of newer writers are ignored.

    Raises:
        DecodeError: the bytes are not an outcome.
    """
    try:
        return _decode_outcome(raw)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"an outcome must be a map with a status: {error}") from error


# ── worker records ────────────────────────────────────────────────────────────────────────────────

_decode_record = msgspec.msgpack.Decoder(WorkerRecord).decode
encode_worker_record = msgspec.msgpack.Encoder().encode


def decode_worker_record(raw: bytes) -> WorkerRecord | None:
    """Read a record; keys of newer writers are ignored. None: the bytes are no record."""
    try:
        return _decode_record(raw)
    except (ValueError, RecursionError):
        return None


# ── what a job carries ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents(ToDict):
    """What is inside an envelope; `data` means nothing where `is_decoded` is False.

    Native producers may add any bytes: then `payload` is all that there is.
    """

    job_id: str
    created_at_ms: int
    attempt: int
    payload: bytes
    data: Any
    is_decoded: bool
    extras: dict[str, Any]


def open_envelope(raw: bytes) -> Contents | None:
    """Read an envelope and its payload; None where the envelope itself cannot be read."""
    try:
        envelope, extras = split_envelope(raw)
    except DecodeError:
        return None
    data, is_decoded = _decoded(envelope.payload)
    return Contents(
        job_id=envelope.id,
        created_at_ms=envelope.created_at_ms,
        attempt=envelope.attempt,
        payload=envelope.payload,
        data=data,
        is_decoded=is_decoded,
        extras=extras or {},
    )


def _decoded(payload: bytes) -> tuple[Any, bool]:
    try:
        return decode_payload(payload), True
    except DecodeError:
        return None, False
