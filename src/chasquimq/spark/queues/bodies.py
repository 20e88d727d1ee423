"""Payloads and results as cells: JSON text, the bytes as they are, or values of a given type."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
import pyarrow as pa

from chasquimq.errors import DecodeError
from chasquimq.wire.codec import decode_payload

BYTES_KEY = "$base64"
UNREADABLE = "payload: not one MessagePack value"
MISFIT = "payload: does not fit its schema"
# Bytes inside a value begin with one of these; without them there are none.
_BIN_MARKS = (b"\xc4", b"\xc5", b"\xc6")

# A column, and what is wrong with each of its cells ("": nothing).
Cells = tuple["pa.Array[Any]", list[str]]


def cells(bodies: Sequence[bytes | None], kind: pa.DataType, *, is_json: bool) -> Cells:
    """The bodies as a column of that type."""
    if pa.types.is_binary(kind):
        return pa.array(bodies, kind), [""] * len(bodies)
    found, faults = _decoded(bodies, is_json=is_json)
    try:
        return pa.array(found, kind), faults
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # One cell does not fit; alone, it is the only one that is empty.
        return _one_by_one(found, faults, kind)


def _decoded(bodies: Sequence[bytes | None], *, is_json: bool) -> tuple[list[Any], list[str]]:
    found: list[Any] = []
    faults: list[str] = []
    for body in bodies:
        value, fault = _value(body, is_json=is_json)
        found.append(value)
        faults.append(fault)
    return found, faults


def _value(body: bytes | None, *, is_json: bool) -> tuple[Any, str]:
    if body is None:
        return None, ""
    try:
        value = decode_payload(body)
    except DecodeError:
        return None, UNREADABLE
    return (json_text(value, body) if is_json else value), ""


def json_text(value: Any, body: bytes) -> str:
    """A value as JSON; bytes become {"$base64": …}, as the commands show them."""
    if not any(mark in body for mark in _BIN_MARKS):
        try:
            return _plain_json(value)
        except (TypeError, ValueError):
            # Keys that JSON has not.
            pass
    return _plain_json(_sayable(value))


def _plain_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _sayable(value: Any) -> Any:
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {_key(key): _sayable(one) for key, one in pairs}
    if isinstance(value, list | tuple):
        return [_sayable(one) for one in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return {BYTES_KEY: b64encode(value).decode()}
    return value.isoformat() if isinstance(value, datetime) else value


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)


def _one_by_one(found: Sequence[Any], faults: list[str], kind: pa.DataType) -> Cells:
    kept: list[Any] = []
    for at, value in enumerate(found):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            faults[at] = MISFIT
            kept.append(None)
        else:
            kept.append(value)
    return pa.array(kept, kind), faults
