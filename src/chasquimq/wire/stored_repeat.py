"""A stored repeat spec as the scheduler needs it, its jobs, and what is kept of a bad one."""

from __future__ import annotations

import msgspec

from chasquimq.errors import DecodeError, SettingsError
from chasquimq.model.backoff import RetryOverride
from chasquimq.model.schedule import Cron, Every, MissedFires, Pattern
from chasquimq.wire.codec import encode_envelope
from chasquimq.wire.repeat_spec import RepeatSpec, decode_spec

_encode = msgspec.msgpack.Encoder().encode
_decode_retry = msgspec.msgpack.Decoder(RetryOverride).decode


class StoredRepeat(msgspec.Struct, frozen=True):
    """A spec with its pattern and policy understood, and what its jobs carry."""

    spec: RepeatSpec
    pattern: Pattern
    policy: MissedFires
    retry: RetryOverride | None
    fired: int

    def envelope(self, job_id: str, now_ms: int) -> bytes:
        """One job of it."""
        return encode_envelope(job_id, self.spec.payload, now_ms, 0, self.retry)


class BadRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a spec that cannot fire: why, its bytes, and since when."""

    reason: str
    spec: bytes
    quarantined_at_ms: int


_decode_record = msgspec.msgpack.Decoder(BadRecord).decode


def read_stored(spec: bytes | None, retry: bytes | None, fired: bytes | None) -> StoredRepeat:
    """Understand the fields of a spec hash.

    Raises:
        DecodeError: saying why the spec can never fire.
    """
    if spec is None:
        raise DecodeError("a spec key must have a spec, and its hash has none")
    row = decode_spec(spec)
    try:
        pattern = Every(row.interval_ms) if row.interval_ms else Cron(row.expression or "", row.tz)
        policy = MissedFires(row.missed_fires, row.max_catchup)
        override = _decode_retry(retry) if retry else None
        count = int(fired or 0)
    except (SettingsError, ValueError) as error:
        raise DecodeError(f"a repeat spec must make sense: {error}") from error
    # The spec is written last and whole; a field of the hash may be left from an older plan.
    return StoredRepeat(row, pattern, policy, row.retry or override, count)


def encode_record(record: BadRecord) -> bytes:
    """Spell what is kept of a bad spec."""
    return _encode(record)


def decode_record(raw: bytes) -> BadRecord:
    """Read it back; bytes that somebody else wrote there are shown as they are."""
    try:
        return _decode_record(raw)
    except (ValueError, RecursionError):
        return BadRecord("written by somebody else", raw, 0)
