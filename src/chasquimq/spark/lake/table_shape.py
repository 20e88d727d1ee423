"""What a table of the lake is made of, and how its rows of one key merge.

Tables with keys are appended to in parts: a key may have many rows, and what they say together is
their merge. Readers merge (`merge_sql`), compaction merges for good; both follow the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from chasquimq.spark.columns import ARROW_TYPES

# key: what rows merge by. sum, min, max: as they say. last: what the latest row by `updated_at`
# that knows it says. kll: sketches of doubles, merged by the library that made them. Any other
# text is the SQL of a figure that follows from merged ones. None: no merge, rows are facts.
Merge = str
ColumnText = tuple[str, str] | tuple[str, str, Merge]

PARTITION: Final = "event_date"


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `kind` is its type as Spark's DDL writes it."""

    name: str
    kind: str
    merge: Merge | None = None

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, ARROW_TYPES[self.kind])


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the lake; partitioned by the day its facts reached the server."""

    name: str
    columns: tuple[Column, ...]

    @property
    def ddl(self) -> str:
        """The columns as Spark takes them."""
        return ", ".join(f"{column.name} {column.kind}" for column in self.columns)

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([column.arrow for column in self.columns])

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def keys(self) -> list[str]:
        """What rows merge by; none where every row is a fact of its own."""
        return [column.name for column in self.columns if column.merge == "key"]


def table(name: str, *columns: ColumnText) -> Table:
    """A table in short: name, type, and the merge where there is one."""
    return Table(name, tuple(map(_column, columns)))


def _column(text: ColumnText) -> Column:
    return Column(*text) if len(text) == 3 else Column(text[0], text[1])


_SQL: Final[dict[str, str]] = {
    "key": "{0}",
    "sum": "sum({0}) as {0}",
    "min": "min({0}) as {0}",
    "max": "max({0}) as {0}",
    "last": "arg_max({0}, updated_at) as {0}",
    "kll": "list({0}) as {0}",
}


def merge_sql(of: Table, source: str) -> str:
    """SQL that merges rows of one key; sketches come as lists, to be merged by `sketches`.

    Runs in duckdb. A table without keys is selected as it is.
    """
    if not of.keys:
        return f"select {', '.join(of.names)} from {source}"  # noqa: S608  names are our own
    picks = [_pick(column.name, column.merge) for column in of.columns if column.merge]
    return f"select {', '.join(picks)} from {source} group by {', '.join(of.keys)}"  # noqa: S608


def _pick(name: str, merge: Merge) -> str:
    rule = _SQL.get(merge, merge + " as {0}")
    return rule.format(name)
