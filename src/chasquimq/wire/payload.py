"""Encodes the value that a user puts into a job, byte for byte as msgpack-python does; decodes it.

A value that the fast encoder refuses is walked: it becomes plain built-in types, or an error that
names the part without a MessagePack form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn, TypeGuard

import msgspec
import ormsgpack

from chasquimq.errors import DecodeError, EncodeError

# As deep as every MessagePack library in use agrees to go.
NESTING_MAX = 511

_INT_MIN = -(2**63)
_INT_MAX = 2**64 - 1
_SCALARS = frozenset({str, int, float, bool, type(None), bytes, bytearray})
# Asked in this order, and by what a class has: no package is imported to know its classes.
_MODELS = (
    ("model_dump", '{}.model_dump(mode="json")'),
    ("__attrs_attrs__", "attrs.asdict({})"),
    ("__dataclass_fields__", "dataclasses.asdict({})"),
    ("__struct_fields__", "msgspec.to_builtins({})"),
)
_HINTS = {
    "datetime": "convert it first, for example with .isoformat()",
    "date": "convert it first, for example with .isoformat()",
    "time": "convert it first, for example with .isoformat()",
    "timedelta": "convert it first, for example with .total_seconds()",
    "Decimal": "convert it first, for example with str()",
    "UUID": "convert it first, for example with str()",
    "set": "convert it first, for example with sorted()",
    "frozenset": "convert it first, for example with sorted()",
}

# Where a value lies: the root's name, then a key or an index for each level.
Path = tuple[object, ...]


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
_decode = msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode


def encode_payload(value: Any, *, root: str = "data") -> bytes:
    """Encode a user's value byte for byte as msgpack-python does.

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
        return _decode(buf)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"a payload must be one MessagePack value: {error}") from error


# ── values of exact built-in types ────────────────────────────────────────────────────────────────


def is_plain(value: Any) -> bool:
    """Return whether every part of a value is of an exact built-in type and not nested too deep.

    Depth first: a value that contains itself twice must meet the limit before it fans out.
    """
    if type(value) in _SCALARS:
        return True
    waiting = [(value, 1)]
    while waiting:
        value, depth = waiting.pop()
        inner = _inside(value)
        if inner is None or depth > NESTING_MAX:
            return False
        if not _SCALARS.issuperset(map(type, inner)):
            waiting += [(part, depth + 1) for part in inner if type(part) not in _SCALARS]
    return True


def _inside(value: Any) -> Collection[Any] | None:
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]  any type may come
    if kind is dict:
        return value.values() if _SCALARS.issuperset(map(type, value)) else None
    return value if kind is list or kind is tuple else None


def to_plain(value: Any, root: str) -> Any:
    """Return a value of exact built-in types that packs to the same bytes.

    Raises:
        EncodeError: some part has no MessagePack form; the message says which.
    """
    try:
        return _plain(value, (root,))
    except RecursionError as error:
        raise _too_deep(root) from error


def _plain(value: Any, path: Path) -> Any:
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value, path)
    raise _refusal(value, path)


def _plain_none(value: None, _path: Path) -> None:
    return value


def _plain_int(value: int, path: Path) -> int:
    number = int.__int__(value)
    if _INT_MIN <= number <= _INT_MAX:
        return value if type(value) is bool else number
    raise EncodeError(f"{_path_text(path)} must be an int of at most 64 bits; send it as a str")


def _plain_float(value: float, _path: Path) -> float:
    return float.__float__(value)


def _plain_str(value: str, path: Path) -> str:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = "must be valid Unicode, but holds a lone surrogate; send it as bytes"
        raise EncodeError(f"{_path_text(path)} {reason}") from error
    return text


def _plain_bytes(value: bytes | bytearray | memoryview, path: Path) -> bytes:
    view = memoryview(value)
    if view.c_contiguous:
        return view.tobytes()
    raise EncodeError(f"{_path_text(path)} is a memoryview with gaps; send its .tobytes()")


def _plain_dict(value: dict[Any, Any], path: Path) -> dict[Any, Any]:
    _check_depth(path)
    return {_plain_key(key, path): _plain(inner, (*path, key)) for key, inner in value.items()}


def _plain_key(key: Any, path: Path) -> Any:
    # Lists cannot be keys; a tuple packs to the same bytes.
    if _is_tuple(key):
        return tuple(_plain_key(part, path) for part in _elements(key, path))
    return _plain(key, (f"a key of {_path_text(path)}",))


def _is_tuple(key: Any) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(key, tuple)


def _plain_list(value: list[Any] | tuple[Any, ...], path: Path) -> list[Any]:
    _check_depth(path)
    return [_plain(inner, (*path, at)) for at, inner in enumerate(_elements(value, path))]


def _elements(value: list[Any] | tuple[Any, ...], path: Path) -> Iterator[Any]:
    # msgpack's ExtType is a tuple too, but no reader of ours knows any extension.
    if type(value).__module__.partition(".")[0] == "msgpack":
        raise _refusal(value, path)
    return iter(value)


def _check_depth(path: Path) -> None:
    if len(path) > NESTING_MAX:
        raise _too_deep(path[0])


def _too_deep(root: object) -> EncodeError:
    rule = f"nested at most {NESTING_MAX} levels deep"
    return EncodeError(f"{root} must be {rule}, but goes deeper or contains itself; flatten it")


def _refusal(value: object, path: Path) -> EncodeError:
    kind = type(value).__name__
    hint = _HINTS.get(kind) or _model_hint(type(value), _path_text(path)) or "convert it first"
    article = "an" if kind[0] in "AEIOUaeiou" and not kind.startswith("U") else "a"
    return EncodeError(f"{_path_text(path)} is {article} {kind}; {hint}")


def _model_hint(kind: type, place: str) -> str | None:
    """How a class that describes its fields becomes a dict."""
    found = next((call for mark, call in _MODELS if hasattr(kind, mark)), None)
    # What cannot be written down as code is only called by what it is.
    own_name = place if " " not in place else "value"
    return found and f"convert it first, with {found.format(own_name)}"


def _path_text(path: Path) -> str:
    return str(path[0]) + "".join(map(_step_text, path[1:]))


def _step_text(step: object) -> str:
    if isinstance(step, str) and step.isidentifier():
        return f".{step}"
    return f"[{step!r:.40}]"


# In msgpack-python's order of asking, so that a value of two kinds packs the same way.
_CONVERSIONS: tuple[tuple[type | tuple[type, ...], Callable[[Any, Path], Any]], ...] = (
    (type(None), _plain_none),
    (int, _plain_int),
    (float, _plain_float),
    ((bytes, bytearray), _plain_bytes),
    (str, _plain_str),
    (dict, _plain_dict),
    ((list, tuple), _plain_list),
    (memoryview, _plain_bytes),
)
