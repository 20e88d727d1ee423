"""An envelope opened for people to look at, its payload decoded where that can be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chasquimq.errors import DecodeError
from chasquimq.model.json_value import ToDict
from chasquimq.wire.codec import decode_payload, split_envelope


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
