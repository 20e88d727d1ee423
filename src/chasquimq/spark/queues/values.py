"""Columns of Arrow as values that MessagePack can say: by column, no scalar object a cell."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  Spark's own habit

from chasquimq.errors import SettingsError

_PLAIN = (
    T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType,
    T.StringType, T.CharType, T.VarcharType, T.BinaryType, T.NullType,
)  # fmt: skip
_HINTS: tuple[tuple[type[T.DataType], str], ...] = (
    (T.TimestampType, "cast it to string, or use unix_millis(…)"),
    (T.TimestampNTZType, "cast it to string"),
    (T.DateType, "cast it to string"),
    (T.DecimalType, "cast it to string, or to double or long"),
)


def check_type(path: str, kind: T.DataType) -> None:
    """Refuse a column that no payload can hold; `path` is its name.

    Raises:
        SettingsError: the column, or a part of it, has no MessagePack form.
    """
    if isinstance(kind, T.StructType):
        _check_fields(path, kind)
    elif isinstance(kind, T.ArrayType):
        check_type(f"{path}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        _check_map(path, kind)
    elif not isinstance(kind, _PLAIN):
        hint = next((hint for one, hint in _HINTS if isinstance(kind, one)), "cast it to string")
        rule = "of a type that MessagePack has: text, binary, number, boolean, struct, array or map"
        raise SettingsError(f"column {path}", kind.simpleString(), rule, hint=hint)


def _check_fields(path: str, kind: T.StructType) -> None:
    names = kind.fieldNames()
    if not names:
        raise SettingsError(f"column {path}", "struct<>", "a struct with at least one field")
    if len(set(names)) < len(names):
        raise SettingsError(f"column {path}", names, "a struct whose fields have different names")
    for one in kind.fields:
        check_type(f"{path}.{one.name}", one.dataType)


def _check_map(path: str, kind: T.MapType) -> None:
    if not isinstance(kind.keyType, T.StringType):
        found, rule = kind.keyType.simpleString(), "a map with text as keys"
        raise SettingsError(f"column {path}", found, rule, hint="cast the keys to string")
    check_type(f"{path}{{}}", kind.valueType)


def values(column: pa.Array[Any]) -> list[Any]:
    """The values of a column; structs become objects that encode as maps."""
    kind = column.type
    if pa.types.is_struct(kind):
        return structs([field.name for field in kind], column.flatten(), _nulls(column))
    if pa.types.is_map(kind):
        pairs = list(zip(values(_inside(column, column.keys)), values(_inside(column, column.items)), strict=True))  # fmt: skip
        return [None if part is None else dict(part) for part in _parts(column, pairs)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _parts(column, values(_inside(column, column.values)))
    return column.to_pylist()


def structs(names: list[str], columns: list[Any], nulls: list[bool] | None = None) -> list[Any]:
    """Objects that encode as maps with these names, one a row."""
    made = list(map(_maker(tuple(names)), *map(values, columns))) if names else []
    if nulls is None:
        return made
    return [None if is_null else one for one, is_null in zip(made, nulls, strict=True)]


@cache
def _maker(names: tuple[str, ...]) -> type[msgspec.Struct]:
    """A class of objects is made and encoded in half of the time that dicts take."""
    fields = [(f"field_{at}", Any) for at in range(len(names))]
    rename = {f"field_{at}": name for at, name in enumerate(names)}
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


def _nulls(column: pa.Array[Any]) -> list[bool] | None:
    return column.is_null().to_pylist() if column.null_count else None


def _inside(column: Any, inner: pa.Array[Any]) -> pa.Array[Any]:
    """The part of the elements that belongs to these rows, which may be a slice."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
    return inner.slice(first, last - first)


def _parts(column: Any, elements: list[Any]) -> list[Any]:
    offsets: list[int] = column.offsets.to_pylist()
    base = offsets[0]
    parts = [elements[first - base : last - base] for first, last in pairwise(offsets)]
    nulls = _nulls(column)
    if nulls is None:
        return parts
    return [None if is_null else part for part, is_null in zip(parts, nulls, strict=True)]
