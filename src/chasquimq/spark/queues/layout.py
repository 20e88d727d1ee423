"""Which column of a DataFrame is what of a job; decided from its schema before the first write."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pyspark.sql import types as T  # noqa: N812  Spark's own habit

from chasquimq.errors import SettingsError
from chasquimq.spark.queues.options import QueueOptions
from chasquimq.spark.queues.values import check_type

# A kind of column: how it is told, what to cast to, and the types that it may have.
_Kind = tuple[str, str, tuple[type[T.DataType], ...]]
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_TEXT: _Kind = ("a column of text", "string", (T.StringType,))
_NUMBER: _Kind = ("a column of whole numbers", "bigint", _WHOLE)
_MS: _Kind = ("a column of whole milliseconds", "bigint", _WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Places of columns; None: there is no such column.

    Without a payload column, `payload_at` is None and the columns of `rest` make the payload.
    """

    id_at: int | None
    name_at: int | None
    payload_at: int | None
    delay_at: int | None
    attempts_at: int | None
    corrupt_at: int | None = None
    rest: tuple[tuple[str, int], ...] = ()
    is_raw: bool = False


def layout_of(schema: T.StructType, options: QueueOptions) -> Layout:
    """Find the columns that the options name.

    Raises:
        SettingsError: a column is not there, or is of a type that it cannot have.
    """
    finder = _Finder(schema)
    id_at = finder.find("idColumn", options.id_column, _TEXT)
    name_at = finder.find("nameColumn", options.name_column, _TEXT)
    delay_at = finder.find("delayColumn", options.delay_column, _MS)
    attempts_at = finder.find("attemptsColumn", options.attempts_column, _NUMBER)
    corrupt_at = finder.find("corruptColumn", options.corrupt_column, _TEXT)
    payload_at, is_raw, rest = None, False, ()
    if options.payload_column:
        payload_at = finder.place("payloadColumn", options.payload_column)
        kind = schema.fields[payload_at].dataType
        check_type(options.payload_column, kind)
        is_raw = isinstance(kind, T.BinaryType)
    else:
        rest = _rest(schema, {id_at, name_at, delay_at, attempts_at, corrupt_at})
    return Layout(
        id_at=id_at, name_at=name_at, payload_at=payload_at, delay_at=delay_at,
        attempts_at=attempts_at, corrupt_at=corrupt_at, rest=rest, is_raw=is_raw,
    )  # fmt: skip


def _rest(schema: T.StructType, taken: set[int | None]) -> tuple[tuple[str, int], ...]:
    rest = [(one, at) for at, one in enumerate(schema.fields) if at not in taken]
    names = [one.name for one, _ in rest]
    if len(set(names)) < len(names):
        raise SettingsError("columns of the payload", names, "of different names")
    for one, _ in rest:
        check_type(one.name, one.dataType)
    return tuple((one.name, at) for one, at in rest)


class _Finder:
    def __init__(self, schema: T.StructType) -> None:
        self._schema = schema

    def find(self, option: str, name: str, kind: _Kind) -> int | None:
        if not name:
            return None
        at = self.place(option, name)
        found, (rule, cast, types) = self._schema.fields[at].dataType, kind
        if not isinstance(found, types):
            hint = f"cast {name} to {cast} first"
            raise SettingsError(f"{option} {name}", found.simpleString(), rule, hint=hint)
        return at

    def place(self, option: str, name: str) -> int:
        names = self._schema.fieldNames()
        # Spark tells no case apart; where one column is spelled exactly so, it is meant.
        alike = [at for at, one in enumerate(names) if one.lower() == name.lower()]
        exact = [at for at in alike if names[at] == name]
        if len(exact or alike) == 1:
            return (exact or alike)[0]
        if alike:
            raise SettingsError(option, name, "a column that is there once")
        close = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:20])}"
        raise SettingsError(option, name, "a column of the data", hint=hint)
