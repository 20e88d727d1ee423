"""Writes the SQL by which the database reads the files of a table: every path quoted, every column there."""

# ruff: noqa: S608  names and paths are our own, and paths are quoted
from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from chasquimq.spark.lake.table_shape import PARTITION, Column, Table

_SQL_TYPES: Final = {
    "string": "varchar",
    "int": "integer",
    "long": "bigint",
    "double": "double",
    "boolean": "boolean",
    "binary": "blob",
    "date": "date",
    "timestamp": "timestamptz",
    "map<string,string>": "map(varchar, varchar)",
}
_GLOB_ESCAPES: Final = str.maketrans({"[": "[[]", "*": "[*]", "?": "[?]"})


def rows_of(table: Table, paths: Sequence[Path]) -> str:
    """SQL for all rows of these files; a column that none of them has yet is null."""
    nothing = _no_rows(table.columns)
    if not paths:
        return nothing
    names = ", ".join(table.names)
    return f"select {names} from ({nothing} union all by name from {_read_parquet(paths)})"


def escaped(path: Path) -> str:
    """The path as a pattern that matches nothing else."""
    return str(path).translate(_GLOB_ESCAPES)


def quoted(text: str) -> str:
    """The text as a literal of the database."""
    return "'" + text.replace("'", "''") + "'"


def _read_parquet(paths: Sequence[Path]) -> str:
    files = ", ".join(quoted(escaped(path)) for path in paths)
    # The day is in the name of a file's folder alone.
    hive = f"hive_partitioning = true, hive_types = {{'{PARTITION}': date}}"
    return f"read_parquet([{files}], union_by_name = true, {hive})"


def _no_rows(columns: Iterable[Column]) -> str:
    nulls = (f"null::{_SQL_TYPES[column.kind]} as {column.name}" for column in columns)
    return f"select {', '.join(nulls)} where false"
