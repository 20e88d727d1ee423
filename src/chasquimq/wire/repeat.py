"""Encodes and decodes the spec of a repeatable job, and the record of one that cannot fire."""

from __future__ import annotations

from typing import Literal

import msgspec

from chasquimq.errors import DecodeError, SettingsError
from chasquimq.model.job_options import U64, RetryOverride, whole_number
from chasquimq.model.schedule import INSTANT_MS_MAX, Cron, Every, MissedFires, Pattern, first_fire
from chasquimq.wire.envelope import encode_envelope
from chasquimq.wire.keys import check_job_name, check_spec_key

# ── the spec ──────────────────────────────────────────────────────────────────────────────────────

RepeatKind = Literal["every", "cron"]
MissedFiresName = Literal["skip", "fire-once", "fire-all"]


class RepeatSpec(msgspec.Struct, frozen=True, kw_only=True):
    """When a job repeats and what it carries.

    `every` has an `interval_ms`, `cron` an `expression` and perhaps a `tz`;
    `max_catchup` belongs to `fire-all`. `payload` is the user's value still encoded. `retry` is
    what the tenth slot asks for each of its jobs; ChasquiMQ (Rust) writes it after 1.3.0.
    """

    key: str
    job_name: str
    kind: RepeatKind
    payload: bytes
    interval_ms: int | None = None
    expression: str | None = None
    tz: str | None = None
    limit: int | None = None
    start_after_ms: int | None = None
    end_before_ms: int | None = None
    missed_fires: MissedFiresName = "skip"
    max_catchup: int | None = None
    retry: RetryOverride | None = None


class _Row(msgspec.Struct, array_like=True):
    """The slots on the wire: eight, then those that a writer has; later ones are left alone.

    We write no `retry` here: what our plans ask for is in a field of the hash.
    """

    key: str
    job_name: str
    pattern: dict[str, list[int | str | None]]
    payload: bytes
    limit: U64 | None
    start_after_ms: U64 | None
    end_before_ms: U64 | None
    fired: U64
    missed_fires: str | dict[str, list[U64]] | None = None
    retry: RetryOverride | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(_Row).decode
_decode_bin = msgspec.msgpack.Decoder(bytes).decode


def resolve_key(
    job_name: str,
    *,
    key: str = "",
    interval_ms: int | None = None,
    expression: str | None = None,
    tz: str | None = None,
) -> str:
    """Return the caller's key, or the one made of name and pattern; texts are used verbatim."""
    if key:
        return key
    if expression is not None:
        return f"{job_name}::cron:{expression}:{tz or 'UTC'}"
    assert interval_ms is not None, "a pattern has an expression or an interval"
    return f"{job_name}::every:{interval_ms}"


def encode_spec(spec: RepeatSpec) -> bytes:
    """Encode a spec; the fire counter has a hash field of its own, so its slot is 0."""
    row = (
        spec.key,
        spec.job_name,
        _encode_pattern(spec),
        # ChasquiMQ (Rust) wraps the user's bytes twice.
        _encode(spec.payload),
        spec.limit,
        spec.start_after_ms,
        spec.end_before_ms,
        0,
    )
    missed_fires = _encode_missed_fires(spec)
    return _encode(row if missed_fires is None else (*row, missed_fires))


def decode_spec(raw: bytes) -> RepeatSpec:
    """Read a spec.

    Raises:
        DecodeError: the bytes are not a spec, or the spec could never fire.
    """
    try:
        row = _decode_row(raw)
        payload = _decode_bin(row.payload)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"a repeat spec must have the shape of the wire: {error}") from error
    kind, interval_ms, expression, tz = _read_pattern(row.pattern)
    missed_fires, max_catchup = _read_missed_fires(row.missed_fires)
    return RepeatSpec(
        key=row.key,
        job_name=row.job_name,
        kind=kind,
        payload=payload,
        interval_ms=interval_ms,
        expression=expression,
        tz=tz,
        limit=row.limit,
        start_after_ms=row.start_after_ms,
        end_before_ms=row.end_before_ms,
        missed_fires=missed_fires,
        max_catchup=max_catchup,
        retry=row.retry,
    )


def _encode_pattern(spec: RepeatSpec) -> dict[str, tuple[int | str | None, ...]]:
    if spec.kind == "every":
        return {"Every": (spec.interval_ms,)}
    return {"Cron": (spec.expression, spec.tz)}


def _encode_missed_fires(spec: RepeatSpec) -> str | dict[str, tuple[int | None]] | None:
    if spec.missed_fires == "fire-all":
        return {"FireAll": (spec.max_catchup,)}
    return "FireOnce" if spec.missed_fires == "fire-once" else None


def _read_pattern(
    pattern: dict[str, list[int | str | None]],
) -> tuple[RepeatKind, int | None, str | None, str | None]:
    match pattern:
        case {"Every": [int(interval_ms)]} if interval_ms >= 1 and len(pattern) == 1:
            return "every", interval_ms, None, None
        case {"Cron": [str(expression), (str() | None) as tz]} if len(pattern) == 1:
            return "cron", None, expression, tz
        case _:
            raise DecodeError(
                "a repeat pattern must be Every with an interval of at least 1 ms "
                f"or Cron with an expression and a zone, got {pattern!r:.80}"
            )


def _read_missed_fires(
    policy: str | dict[str, list[int]] | None,
) -> tuple[MissedFiresName, int | None]:
    match policy:
        case None | "Skip":
            return "skip", None
        case "FireOnce":
            return "fire-once", None
        case {"FireAll": [max_catchup]} if len(policy) == 1:
            # To catch up with none of the missed windows is to skip them.
            return ("fire-all", max_catchup) if max_catchup else ("skip", None)
        case _:
            raise DecodeError(f"missed fires must be Skip, FireOnce or FireAll, got {policy!r:.80}")


# ── a stored spec ─────────────────────────────────────────────────────────────────────────────────

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
    """The record of a spec that cannot fire: why, its bytes, and since when."""

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
    """Encode the record of a spec that cannot fire."""
    return _encode(record)


def decode_record(raw: bytes) -> BadRecord:
    """Read such a record; other bytes are returned as they are."""
    try:
        return _decode_record(raw)
    except (ValueError, RecursionError):
        return BadRecord("not written by ChasquiMQ", raw, 0)


# ── a new spec ────────────────────────────────────────────────────────────────────────────────────


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How often a spec fires at most, and between which instants."""

    limit: int | None = None
    start_after_ms: int | None = None
    end_before_ms: int | None = None

    def __post_init__(self) -> None:
        _check("limit", self.limit, 1)
        _check("start_after_ms", self.start_after_ms, 0)
        _check("end_before_ms", self.end_before_ms, 0)
        start_ms, end_ms = self.start_after_ms, self.end_before_ms
        if start_ms is not None and end_ms is not None and end_ms <= start_ms:
            raise SettingsError("end_before_ms", end_ms, f"after start_after_ms, {start_ms}")


class NewRepeat(msgspec.Struct, frozen=True):
    """A spec ready to be written; `retry` is empty where its jobs ask for nothing of their own."""

    key: str
    spec: bytes
    retry: bytes
    pattern: Pattern
    bounds: Bounds

    def first_fire_ms(self, now_ms: int) -> int:
        """Its first window; SettingsError when there is none before its end."""
        bounds = self.bounds
        return first_fire(self.pattern, now_ms, bounds.start_after_ms, bounds.end_before_ms)


def encode_repeat(
    name: str,
    payload: bytes,
    pattern: Pattern,
    policy: MissedFires,
    bounds: Bounds,
    retry: RetryOverride | None = None,
    key: str | None = None,
) -> NewRepeat:
    """One spec, under the caller's key or under that of its name and pattern.

    Raises:
        SettingsError: the name or the key was refused.
    """
    interval_ms, expression, tz = _parts(pattern)
    key = check_spec_key(key) if key is not None else _own_key(name, pattern)
    spec = RepeatSpec(
        key=key,
        job_name=check_job_name(name),
        kind="cron" if interval_ms is None else "every",
        payload=payload,
        interval_ms=interval_ms,
        expression=expression,
        tz=tz,
        limit=bounds.limit,
        start_after_ms=bounds.start_after_ms,
        end_before_ms=bounds.end_before_ms,
        missed_fires=policy.kind,
        max_catchup=policy.max_catchup,
    )
    return NewRepeat(key, encode_spec(spec), _encode(retry) if retry else b"", pattern, bounds)


def _own_key(name: str, pattern: Pattern) -> str:
    interval_ms, expression, tz = _parts(pattern)
    name = check_job_name(name)
    return check_spec_key(resolve_key(name, interval_ms=interval_ms, expression=expression, tz=tz))


def _parts(pattern: Pattern) -> tuple[int | None, str | None, str | None]:
    if isinstance(pattern, Every):
        return pattern.interval_ms, None, None
    return None, pattern.expression, pattern.tz


def _check(name: str, value: int | None, least: int) -> None:
    if value is not None:
        whole_number(name, value, least, INSTANT_MS_MAX)
