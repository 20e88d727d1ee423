"""Payloads and results as cells: JSON text, the bytes as they are, or values of a given type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from chasquimq.errors import DecodeError
from chasquimq.model.json_value import json_value
from chasquimq.wire.payload import decode_payload

UNREADABLE = "payload: not one MessagePack value"
MISFIT = "payload: does not fit its schema"
# How bytes, NaN, infinities and moments begin inside a value; without these there are none.
_ODD_MARKS = re.compile(
    rb"[\xc4-\xc6]|\xca[\x7f\xff][\x80-\xff]|\xcb[\x7f\xff][\xf0-\xff]"
    rb"|\xd6\xff|\xd7\xff|\xc7\x0c\xff"
)

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
    if _ODD_MARKS.search(body) is None:
        try:
            return _plain_json(value)
        except (TypeError, ValueError):
            # Keys that JSON has not.
            pass
    return _plain_json(json_value(value))


def _plain_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


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
