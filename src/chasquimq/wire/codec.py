"""Jobs as bytes: the user's payload, and the envelope that carries it through Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, cast

import msgspec
import ormsgpack

from chasquimq.errors import DecodeError
from chasquimq.model.backoff import U32, U64, RetryOverride
from chasquimq.wire.plain_value import is_plain, to_plain
from chasquimq.wire.tolerant_envelope import read_parts
from chasquimq.wire.value_end import value_end

# What the extras we know must be; a stranger's value of another kind is not handed on.
_EXTRA_KINDS: dict[str, type] = {
    "generation": int,
    "traceparent": str,
    "tracestate": str,
    "expires_ms": int,
    "timeout_ms": int,
}


class Envelope(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A job as the wire carries it; the name travels outside.

    `attempt` counts the runs already spent, `payload` is the user's value still encoded.
    """

    id: str
    payload: bytes
    created_at_ms: U64
    attempt: U32 = 0
    retry: RetryOverride | None = None


def _refuse_extension(code: int, _body: memoryview) -> NoReturn:
    raise ValueError(f"no extension is known, got type {code}")


# Leaves to us what it could pack and msgpack-python would refuse or pack in another way.
_EXACT_TYPES_ONLY = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_pack = ormsgpack.packb
_encode = msgspec.msgpack.Encoder().encode
_decode_any = msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode
_decode_extras = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_typed = msgspec.msgpack.Decoder(Envelope).decode


def encode_payload(value: Any, *, root: str = "data") -> bytes:
    """Spell a user's value byte for byte as msgpack-python does.

    Raises:
        EncodeError: part of the value has no MessagePack form; `root` begins its path.
    """
    try:
        return _pack(value, None, _EXACT_TYPES_ONLY)
    except TypeError:
        return _encode_with_care(value, root)


def _encode_with_care(value: Any, root: str) -> bytes:
    """What is nested deep, of a type of the user's own, or has no MessagePack form at all."""
    if is_plain(value):
        try:
            return _encode(value)
        except (OverflowError, ValueError, RecursionError):
            # The walk below finds the culprit and names it.
            pass
    return _encode(to_plain(value, root))


def decode_payload(buf: bytes) -> Any:
    """Read a user's value; timestamps become aware datetimes.

    Raises:
        DecodeError: the bytes are not one whole MessagePack value, or hold an extension.
    """
    try:
        return _decode_any(buf)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"a payload must be one MessagePack value: {error}") from error


def encode_envelope(
    id: str,
    payload: bytes,
    created_at_ms: int,
    attempt: int = 0,
    retry: RetryOverride | None = None,
    extras: dict[str, Any] | None = None,
) -> bytes:
    """Spell an envelope; extras follow as a second value, which the original ignores."""
    # Two shapes: without an override the original writes four elements, not five and a nil.
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
        DecodeError: the original would not read it either.
    """
    try:
        return _decode_typed(buf)
    except (ValueError, RecursionError):
        end = value_end(buf)
    return _decode_first(buf[:end])


def split_envelope(buf: bytes) -> tuple[Envelope, dict[str, Any] | None]:
    """Read an envelope and the extras behind it; None where there are none to read.

    Raises:
        DecodeError: the envelope itself is not readable; unreadable extras are no reason.
    """
    try:
        return _decode_typed(buf), None
    except (ValueError, RecursionError):
        end = value_end(buf)
    return _decode_first(buf[:end]), _read_extras(buf[end:]) or None


def read_extras(buf: bytes) -> dict[str, Any]:
    """Return the extras behind an envelope, empty where there are none to read."""
    try:
        return _read_extras(buf[value_end(buf) :])
    except DecodeError:
        return {}


def _decode_first(raw: bytes) -> Envelope:
    try:
        return _decode_typed(raw)
    except (ValueError, RecursionError):
        pass
    return Envelope(*read_parts(raw))


def _read_extras(raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    try:
        extras = _decode_extras(raw)
    except (ValueError, RecursionError):
        return {}
    return {key: value for key, value in extras.items() if _is_usable(key, value)}


def _is_usable(key: str, value: Any) -> bool:
    # Keys we do not know stay, so that a newer version's extras survive a retry here.
    kind = _EXTRA_KINDS.get(key)
    return kind is None or type(value) is kind
