"""The outcome key: how a finished job ended, for those who wait for it."""

from __future__ import annotations

import msgspec

from chasquimq.errors import DecodeError

COMPLETED = "completed"
DEAD = "dead"


class JobOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """`has_result` tells a result that expired from one that never was."""

    status: str
    has_result: bool = False
    reason: str = ""
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JobOutcome).decode
COMPLETED_WITH_RESULT = _encode(JobOutcome(COMPLETED, has_result=True))
COMPLETED_WITHOUT_RESULT = _encode(JobOutcome(COMPLETED))


def encode_dead(reason: str, error: str) -> bytes:
    """The outcome of a job that ended in the DLQ."""
    return _encode(JobOutcome(DEAD, reason=reason, error=error))


def decode_outcome(raw: bytes) -> JobOutcome:
    """Read an outcome; fields of newer writers are ignored.

    Raises:
        DecodeError: the bytes are not an outcome.
    """
    try:
        return _decode(raw)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"an outcome must be a map with a status: {error}") from error
