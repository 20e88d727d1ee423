"""Turns rows of a DataFrame into jobs: finds the columns, checks the rows, encodes the values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  Spark's own habit

from chasquimq.errors import SettingsError
from chasquimq.model.job_options import U32_MAX
from chasquimq.settings import ProducerSettings
from chasquimq.spark.queues.options import QueueOptions
from chasquimq.wire.keys import JOB_ID_BYTES_MAX, JOB_NAME_BYTES_MAX
from chasquimq.wire.new_job import encode_values

# A kind of column: how it is described, what to cast to, and the types that it may have.
_Kind = tuple[str, str, tuple[type[T.DataType], ...]]
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_TEXT: _Kind = ("a column of text", "string", (T.StringType,))
_NUMBER: _Kind = ("a column of whole numbers", "bigint", _WHOLE)
_MS: _Kind = ("a column of whole milliseconds", "bigint", _WHOLE)
_NIL: Final = b"\xc0"
_EMPTY_MAP: Final = b"\x80"
_DELAY_MS_MAX: Final = ProducerSettings().max_delay_secs * 1_000
# Says what is wrong with a value; empty: nothing.
_Judge = Callable[[Any], str]
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
        # Spark ignores case; where one column is written exactly so, it is meant.
        alike = [at for at, one in enumerate(names) if one.lower() == name.lower()]
        exact = [at for at in alike if names[at] == name]
        if len(exact or alike) == 1:
            return (exact or alike)[0]
        if alike:
            raise SettingsError(option, name, "a column that is there once")
        close = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:20])}"
        raise SettingsError(option, name, "a column of the data", hint=hint)


@dataclass(slots=True)
class Rows:
    """Rows by column; None: there is no such column. `faults` counts rows that were left out."""

    names: list[str]
    payloads: list[bytes]
    ids: list[str] | None = None
    waits_ms: list[int] | None = None
    attempts: list[int | None] | None = None
    faults: dict[str, int] = field(default_factory=dict[str, int])

    def __len__(self) -> int:
        return len(self.payloads)

    def only(self, places: Sequence[int]) -> Rows:
        """The rows of these places."""

        def kept(column: list[Any] | None) -> Any:
            return None if column is None else [column[at] for at in places]

        return Rows(
            kept(self.names), kept(self.payloads), kept(self.ids), kept(self.waits_ms),
            kept(self.attempts),
        )  # fmt: skip

    def pieces(self, bytes_max: int) -> Iterator[Rows]:
        """The same rows in slices of at most so many bytes of payload, or of one row."""
        if sum(map(len, self.payloads)) <= bytes_max:
            yield self
            return
        start = size = 0
        for at, payload in enumerate(self.payloads):
            if at > start and size + len(payload) > bytes_max:
                yield self.only(range(start, at))
                start, size = at, 0
            size += len(payload)
        yield self.only(range(start, len(self)))


class RowReader:
    """Reads slices of one write."""

    def __init__(self, layout: Layout, options: QueueOptions) -> None:
        self._layout = layout
        self._options = options

    def read(self, batch: pa.RecordBatch) -> Rows:
        """The good rows of a slice, in their order."""
        rows = self._columns(batch)
        faults = self._faults(rows, _column(batch, self._layout.corrupt_at))
        if not faults:
            return _settled(rows)
        good = _settled(rows.only([at for at in range(len(rows)) if at not in faults]))
        for what in faults.values():
            good.faults[what] = good.faults.get(what, 0) + 1
        return good

    def _columns(self, batch: pa.RecordBatch) -> Rows:
        layout = self._layout
        names = _column(batch, layout.name_at)
        if names is not None and self._options.allow_unnamed:
            names = [name or "" for name in names]
        payloads = self._payloads(batch)
        assert len(payloads) == batch.num_rows, "every row has one payload"
        return Rows(
            [self._options.name] * batch.num_rows if names is None else names,
            payloads,
            _column(batch, layout.id_at),
            _column(batch, layout.delay_at),
            _column(batch, layout.attempts_at),
        )

    def _payloads(self, batch: pa.RecordBatch) -> list[bytes]:
        at = self._layout.payload_at
        if at is None:
            names = [name for name, _ in self._layout.rest]
            columns = [batch.column(place) for _, place in self._layout.rest]
            return encode_values(structs(names, columns)) or [_EMPTY_MAP] * batch.num_rows
        found = values(batch.column(at))
        if not self._layout.is_raw:
            return encode_values(found)
        return [_NIL if one is None else one for one in found] if None in found else found

    def _faults(self, rows: Rows, corrupt: list[Any] | None) -> dict[int, str]:
        """What is wrong, by row; the first reason counts."""
        faults: dict[int, str] = {}
        if corrupt is not None:
            # All else of such a row is missing, which is no news.
            _note(faults, corrupt, _corrupt_fault)
        if rows.ids is not None and not _are_good_texts(rows.ids, JOB_ID_BYTES_MAX):
            _note(faults, rows.ids, _id_fault)
        if self._layout.name_at is not None and not _are_good_texts(rows.names, JOB_NAME_BYTES_MAX):
            is_allowed = self._options.allow_unnamed
            _note(faults, rows.names, _long_name_fault if is_allowed else _name_fault)
        if max(map(len, rows.payloads), default=0) > self._options.max_payload_bytes:
            _note(faults, rows.payloads, self._payload_fault)
        if rows.waits_ms is not None:
            _note(faults, rows.waits_ms, _wait_fault)
        if rows.attempts is not None:
            _note(faults, rows.attempts, _attempts_fault)
        return faults

    def _payload_fault(self, payload: bytes) -> str:
        most = self._options.max_payload_bytes
        return f"a payload over {most} bytes" if len(payload) > most else ""


def _column(batch: pa.RecordBatch, at: int | None) -> list[Any] | None:
    return None if at is None else batch.column(at).to_pylist()


def _settled(rows: Rows) -> Rows:
    """No wait is a wait of nothing; where no row waits, there is no such column."""
    if rows.waits_ms is not None:
        waits = [wait or 0 for wait in rows.waits_ms]
        rows.waits_ms = waits if any(waits) else None
    return rows


def _are_good_texts(texts: Sequence[Any], bytes_max: int) -> bool:
    """The usual case, at the pace of C; whatever else is looked at one by one."""
    if None in texts:
        return False
    is_short = max(map(len, texts), default=0) <= bytes_max
    return is_short and all(map(str.strip, texts)) and all(map(str.isascii, texts))


def _note(faults: dict[int, str], column: list[Any], judge: _Judge) -> None:
    for at, value in enumerate(column):
        what = judge(value)
        if what:
            faults.setdefault(at, what)


def _corrupt_fault(value: str | None) -> str:
    return "" if value is None else "a corrupt record"


def _id_fault(value: str | None) -> str:
    if value is None:
        return "no id"
    if not value.strip():
        return "a blank id"
    return "an id over 256 bytes" if len(value.encode()) > JOB_ID_BYTES_MAX else ""


def _name_fault(value: str | None) -> str:
    if value is None:
        return "no name"
    return _long_name_fault(value) if value.strip() else "a blank name"


def _long_name_fault(value: str) -> str:
    return "a name over 256 bytes" if len(value.encode()) > JOB_NAME_BYTES_MAX else ""


def _wait_fault(value: int | None) -> str:
    if value is not None and value < 0:
        return "a delay below 0"
    return "a delay over 30 days" if value is not None and value > _DELAY_MS_MAX else ""


def _attempts_fault(value: int | None) -> str:
    is_good = value is None or 1 <= value <= U32_MAX
    return "" if is_good else "attempts that are not at least 1"


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
