"""Encodes and decodes the envelope of a job, and the extras behind it.

The fast way reads what our writers and ChasquiMQ (Rust) write; every other form that ChasquiMQ
(Rust) accepts is read field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, TypeGuard, cast

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.job_options import (
    EXPONENTIAL,
    FIXED,
    U32,
    U32_MAX,
    U64,
    Backoff,
    RetryOverride,
)
from chasquimq.wire.payload import decode_payload

# What may follow an envelope: room for everything that is known, and no way to exhaust a stack.
EXTRAS_BYTES_MAX = 16 * 1024
EXTRAS_DEPTH_MAX = 32
# The types of the extras that we know; a value of another type is dropped.
_EXTRA_KINDS: dict[str, type] = {
    "generation": int,
    "traceparent": str,
    "tracestate": str,
    "expires_ms": int,
    "timeout_ms": int,
}
_CONTAINERS = (dict, list, tuple)


class Envelope(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A job as the wire carries it; the name travels outside.

    `attempt` counts the runs already spent, `payload` is the user's value still encoded.
    """

    id: str
    payload: bytes
    created_at_ms: U64
    attempt: U32 = 0
    retry: RetryOverride | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_extras = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_typed = msgspec.msgpack.Decoder(Envelope).decode


def encode_envelope(
    id: str,
    payload: bytes,
    created_at_ms: int,
    attempt: int = 0,
    retry: RetryOverride | None = None,
    extras: dict[str, Any] | None = None,
) -> bytes:
    """Encode an envelope; extras follow as a second value, which ChasquiMQ (Rust) ignores."""
    # Two shapes: without an override ChasquiMQ (Rust) writes four elements, not five and a nil.
    if retry is None:
        envelope = _encode((id, payload, created_at_ms, attempt))
    else:
        envelope = _encode((id, payload, created_at_ms, attempt, retry))
    return envelope + _encode(extras) if extras else envelope


# Id, payload, time and attempt of a job without an override and without extras.
encode_plain_envelope = cast("Callable[[tuple[str, bytes, int, int]], bytes]", _encode)


def decode_envelope(buf: bytes) -> Envelope:
    """Read an envelope, whatever may follow it.

    Raises:
        DecodeError: ChasquiMQ (Rust) would not read it either.
    """
    try:
        return _decode_typed(buf)
    except (ValueError, RecursionError):
        end = value_end(buf)
    return _decode_first(buf[:end])


def split_envelope(buf: bytes) -> tuple[Envelope, dict[str, Any] | None]:
    """Read an envelope and the extras behind it; None where there are none to read.

    Raises:
        DecodeError: the envelope is not readable, or its extras are over the cap; extras that are
            no map of named values are no reason.
    """
    try:
        return _decode_typed(buf), None
    except (ValueError, RecursionError):
        end = value_end(buf)
    return _decode_first(buf[:end]), _read_extras(buf[end:]) or None


def _decode_first(raw: bytes) -> Envelope:
    try:
        return _decode_typed(raw)
    except (ValueError, RecursionError):
        pass
    return Envelope(*_read_parts(raw))


# ── extras ────────────────────────────────────────────────────────────────────────────────────────


def read_extras(buf: bytes) -> dict[str, Any]:
    """Return the extras behind an envelope, empty where there are none to read."""
    try:
        return _read_extras(buf[value_end(buf) :])
    except DecodeError:
        return {}


def raw_extras(buf: bytes) -> bytes:
    """The extras behind an envelope as they came, to be carried on without being understood."""
    return buf[value_end(buf) :]


def changed_extras(raw: bytes, changes: Mapping[str, int | None]) -> bytes:
    """The same extras with some keys set, or taken out by None; every other byte stays."""
    pairs: list[bytes] = []
    left = dict(changes)
    for key, pair in _pairs(raw):
        if key not in changes:
            pairs.append(pair)
        elif (value := left.pop(key, None)) is not None:
            pairs.append(_encode(key) + _encode(value))
    pairs += [_encode(key) + _encode(value) for key, value in left.items() if value is not None]
    return _map_head(len(pairs)) + b"".join(pairs) if pairs else b""


def _pairs(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Each key of a map, and its bytes along with those of its value."""
    count, at = _read_map_head(raw) if raw else (0, 0)
    for _ in range(count):
        value_at = value_end(raw, at)
        end = value_end(raw, value_at)
        yield decode_payload(raw[at:value_at]), raw[at:end]
        at = end


def _read_map_head(raw: bytes) -> tuple[int, int]:
    """How many pairs a map has, and where the first one begins."""
    if raw[0] & 0xF0 == 0x80:
        return raw[0] & 0x0F, 1
    width = 2 if raw[0] == 0xDE else 4
    return int.from_bytes(raw[1 : 1 + width], "big"), 1 + width


def _map_head(count: int) -> bytes:
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2, "big")  # 16 KiB hold fewer than 2**16 pairs


def _read_extras(raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    if len(raw) > EXTRAS_BYTES_MAX:
        raise DecodeError(f"extras must be at most {EXTRAS_BYTES_MAX} bytes, got {len(raw)}")
    try:
        extras = _decode_extras(raw)
    except ValueError:
        return {}
    except RecursionError as error:
        raise _too_deep() from error
    # Each level takes a byte at least, so that the usual few are not looked at.
    if len(raw) > EXTRAS_DEPTH_MAX and _is_deep(extras):
        raise _too_deep()
    return {key: value for key, value in extras.items() if _is_usable(key, value)}


def _is_deep(extras: dict[str, Any]) -> bool:
    level: list[Any] = [value for value in extras.values() if type(value) in _CONTAINERS]
    depth = 1
    while level and depth < EXTRAS_DEPTH_MAX:
        level = [inner for one in level for inner in _inside(one) if type(inner) in _CONTAINERS]
        depth += 1
    return bool(level)


def _inside(container: Any) -> Iterable[Any]:
    if type(container) is not dict:
        return container
    # A key may be an array, which is decoded as a tuple.
    pairs = cast("dict[Any, Any]", container)
    return chain(pairs, pairs.values())


def _too_deep() -> DecodeError:
    return DecodeError(f"extras must be nested at most {EXTRAS_DEPTH_MAX} levels deep")


def _is_usable(key: str, value: Any) -> bool:
    # Keys we do not know stay, so that a newer version's extras survive a retry here.
    kind = _EXTRA_KINDS.get(key)
    return kind is None or type(value) is kind


# ── every form of an envelope that ChasquiMQ (Rust) accepts ───────────────────────────────────────

_BYTE_MAX = 255
_U64_MAX = 2**64 - 1
_KINDS_BY_INDEX = (FIXED, EXPONENTIAL)


class _EnvelopeParts(NamedTuple):
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


def _read_parts(raw: bytes) -> _EnvelopeParts:
    """Read exactly one envelope, in array or map form.

    Raises:
        DecodeError: ChasquiMQ (Rust) would not read it either.
    """
    try:
        value = _decode(raw)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"an envelope must be valid MessagePack: {error}") from error
    job_id, payload, created_at_ms, attempt, retry = _slots(value, _ENVELOPE)
    return _EnvelopeParts(
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


# ── where a MessagePack value ends ────────────────────────────────────────────────────────────────

# Per leading byte: how many bytes the value takes by itself, and how many values follow inside it.
_FIXED: list[tuple[int, int]] = [(0, 0)] * 256
# Per leading byte: width of the length, bytes before the body, body bytes and values per unit.
_SIZED: dict[int, tuple[int, int, int, int]] = {
    **{0xC4 + i: (1 << i, 0, 1, 0) for i in range(3)},  # bin
    **{0xC7 + i: (1 << i, 1, 1, 0) for i in range(3)},  # ext
    **{0xD9 + i: (1 << i, 0, 1, 0) for i in range(3)},  # str
    **{0xDC + i: (2 << i, 0, 0, 1) for i in range(2)},  # array
    **{0xDE + i: (2 << i, 0, 0, 2) for i in range(2)},  # map
}


def value_end(buf: bytes, start: int = 0) -> int:
    """Return the offset after the value at `start`; whatever follows is not looked at.

    The walk keeps a count instead of a stack, so that nesting costs nothing.

    Raises:
        DecodeError: the buffer ends inside the value, or holds a byte MessagePack never uses.
    """
    at, pending = start, 1
    size = len(buf)
    while pending:
        if at >= size:
            raise _cut_off(size)
        own, inside = _FIXED[buf[at]]
        if not own:
            own, inside = _measure(buf, at)
        at += own
        pending += inside - 1
    if at > size:
        raise _cut_off(size)
    return at


def _measure(buf: bytes, at: int) -> tuple[int, int]:
    shape = _SIZED.get(buf[at])
    if shape is None:
        raise DecodeError("MessagePack never uses the byte 0xc1, but it was found")
    width, before, bytes_per, values_per = shape
    count = int.from_bytes(buf[at + 1 : at + 1 + width], "big")
    return 1 + width + before + count * bytes_per, count * values_per


def _cut_off(size: int) -> DecodeError:
    return DecodeError(f"a MessagePack value must be whole, but it was cut off at byte {size}")


def _fill_fixed() -> None:
    for tag in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
        _FIXED[tag] = (1, 0)
    for count in range(16):
        _FIXED[0x80 + count] = (1, 2 * count)
        _FIXED[0x90 + count] = (1, count)
    for length in range(32):
        _FIXED[0xA0 + length] = (1 + length, 0)
    for tag, own in zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True):
        _FIXED[tag] = (own, 0)
    for tag, own in zip(range(0xD4, 0xD9), (3, 4, 6, 10, 18), strict=True):
        _FIXED[tag] = (own, 0)


_fill_fixed()
