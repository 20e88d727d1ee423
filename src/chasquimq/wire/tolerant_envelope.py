"""Reads every envelope the original reads, however it was encoded; slower than the typed way."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.backoff import EXPONENTIAL, FIXED, U32_MAX, Backoff, RetryOverride

_BYTE_MAX = 255
_U64_MAX = 2**64 - 1
_KINDS_BY_INDEX = (FIXED, EXPONENTIAL)


class EnvelopeParts(NamedTuple):
    """The five parts of an envelope, checked."""

    id: str
    payload: bytes
    created_at_ms: int
    attempt: int
    retry: RetryOverride | None


class _Shape(NamedTuple):
    """A record that may come as an array or as a map."""

    what: str
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    array_len_min: int


_ENVELOPE = _Shape(
    "an envelope", ("id", "payload", "created_at_ms", "attempt", "retry"), (0, None), 3
)
_RETRY = _Shape("a retry override", ("max_attempts", "backoff"), (None, None), 2)
_BACKOFF = _Shape(
    "a backoff",
    ("kind", "delay_ms", "max_delay_ms", "multiplier", "jitter_ms"),
    (None, None, None),
    5,
)

_decode = msgspec.msgpack.Decoder().decode


def read_parts(raw: bytes) -> EnvelopeParts:
    """Read exactly one envelope, in array or map form.

    Raises:
        DecodeError: the original would not read it either.
    """
    try:
        value = _decode(raw)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"an envelope must be valid MessagePack: {error}") from error
    job_id, payload, created_at_ms, attempt, retry = _slots(value, _ENVELOPE)
    return EnvelopeParts(
        _text(job_id, "id"),
        _bytes(payload),
        _uint(created_at_ms, "created_at_ms", _U64_MAX),
        _uint(attempt, "attempt", U32_MAX),
        None if retry is None else _retry(retry),
    )


def _retry(value: Any) -> RetryOverride:
    max_attempts, backoff = _slots(value, _RETRY)
    return RetryOverride(
        _optional_uint(max_attempts, "max_attempts", U32_MAX),
        None if backoff is None else _backoff(backoff),
    )


def _backoff(value: Any) -> Backoff:
    kind, delay_ms, max_delay_ms, multiplier, jitter_ms = _slots(value, _BACKOFF)
    return Backoff(
        _kind(kind),
        _uint(delay_ms, "delay_ms", _U64_MAX),
        _optional_uint(max_delay_ms, "max_delay_ms", _U64_MAX),
        _multiplier(multiplier),
        _optional_uint(jitter_ms, "jitter_ms", _U64_MAX),
    )


def _slots(value: Any, shape: _Shape) -> tuple[Any, ...]:
    if _is_array(value):
        return _slots_of_array(tuple(value), shape)
    if _is_map(value):
        return _slots_of_map(value, shape)
    raise _wrong(value, shape.what, "an array or a map")


def _is_array(value: Any) -> TypeGuard[list[Any]]:
    return type(value) is list


def _is_map(value: Any) -> TypeGuard[dict[Any, Any]]:
    return type(value) is dict


def _slots_of_array(values: tuple[Any, ...], shape: _Shape) -> tuple[Any, ...]:
    wanted = len(shape.names)
    if shape.array_len_min <= len(values) <= wanted:
        absent = wanted - len(values)
        return values + shape.defaults[len(shape.defaults) - absent :]
    raise DecodeError(
        f"{shape.what} must have {shape.array_len_min} to {wanted} elements, got {len(values)}"
    )


def _slots_of_map(value: dict[Any, Any], shape: _Shape) -> tuple[Any, ...]:
    required = shape.names[: len(shape.names) - len(shape.defaults)]
    missing = [name for name in required if name not in value]
    if missing:
        raise DecodeError(f"{shape.what} must have {', '.join(required)}, got no {missing[0]}")
    optional = zip(shape.names[len(required) :], shape.defaults, strict=True)
    return (*(value[name] for name in required), *(value.get(n, d) for n, d in optional))


def _text(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"{what} must be UTF-8, got {value[:40]!r}") from error
    raise _wrong(value, what, "a string")


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if _is_array(value) and all(map(_is_byte, value)):
        return bytes(value)
    raise _wrong(value, "payload", "binary or an array of bytes")


def _is_byte(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _BYTE_MAX


def _kind(value: Any) -> str:
    if type(value) is int and 0 <= value < len(_KINDS_BY_INDEX):
        return _KINDS_BY_INDEX[value]
    return _text(value, "kind")


def _multiplier(value: Any) -> float | None:
    if value is None or type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise _wrong(value, "multiplier", "a number")


def _optional_uint(value: Any, what: str, ceiling: int) -> int | None:
    return None if value is None else _uint(value, what, ceiling)


def _uint(value: Any, what: str, ceiling: int) -> int:
    if type(value) is int and 0 <= value <= ceiling:
        return value
    raise _wrong(value, what, f"an int from 0 to {ceiling}")


def _wrong(value: object, what: str, rule: str) -> DecodeError:
    # Only a number is shown: the repr of a hostile container could be as deep as the container.
    found = repr(value) if isinstance(value, (int, float)) else type(value).__name__
    return DecodeError(f"{what} must be {rule}, got {found}")
