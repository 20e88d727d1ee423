"""Answers questions about a lake from its tables, read-only and without a JVM."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import shorten
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import duckdb

from chasquimq.errors import PreconditionFailed, SettingsError
from chasquimq.spark.lake.reading import resolved, unreadable
from chasquimq.spark.lake.sketches import register_functions
from chasquimq.spark.lake.table_sql import escaped
from chasquimq.spark.lake.tables import SILVER_JOBS_PARTS, SILVER_OPEN, TABLES
from chasquimq.spark.lake.views import view_sql

ROWS_MAX = 1_000
QUESTION_CHARS = 120
# What is left out is what the pipeline goes on from.
ASKED_TABLES: Final = sorted(set(TABLES) - {SILVER_JOBS_PARTS.name, SILVER_OPEN.name})
_SHOW_TABLES: Final = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)
_NO_TABLE: Final = re.compile(r"Table with name (.+?) does not exist")
_EXPLAIN: Final = re.compile(r"\s*explain\b(.*)", re.IGNORECASE | re.DOTALL)
_READ_ONLY: Final = "the tables of a lake are only read here"
_PIVOT: Final = "a PIVOT has to name its columns with IN (…)"


class Answer(NamedTuple):
    """Columns and rows; `is_cut` where there were more rows than asked for."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    is_cut: bool = False

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def has_tables(lake: Path) -> bool:
    """Whether a pipeline has begun to fill the folder."""
    return any((lake / name / "_delta_log").is_dir() for name in TABLES)


def refuse_empty(lake: Path) -> None:
    """Raise a sentence about a folder that holds no table."""
    if not has_tables(lake):
        hint = "fill it with `chasqui pipeline once`, or name another with --lake"
        raise PreconditionFailed("lake", str(lake), "a folder with tables", hint=hint)


class Answers:
    """A lake to ask; every question sees the tables as they are when first asked about them."""

    def __init__(self, lake: Path) -> None:
        refuse_empty(lake)
        self._lake = resolved(lake)
        self._viewed: set[str] = set()
        self._connection = _open(self._lake)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def lake(self) -> Path:
        return self._lake

    def sql(self, question: str, *, rows_max: int = ROWS_MAX) -> Answer:
        """Answer one SELECT of a user.

        Raises:
            SettingsError: it is not one SELECT, names what is not there, or the files of a table
                cannot be read.
        """
        if _SHOW_TABLES.fullmatch(question):
            return Answer(["table"], [(name,) for name in ASKED_TABLES])
        try:
            self._refuse_writes(question)
            return self._answer(question, {}, rows_max)
        except duckdb.IOException as torn:
            raise unreadable(self._lake, torn) from None
        except (duckdb.Error, UnicodeEncodeError) as wrong:
            raise _refusal(question, "SQL that the tables can answer", _why(wrong)) from None

    def ask(self, question: str, **values: object) -> list[dict[str, Any]]:
        """The rows that a question of our own yields.

        Raises:
            SettingsError: the files of a table cannot be read.
        """
        try:
            return self._answer(question, values, None).dicts()
        except duckdb.Error as wrong:
            raise unreadable(self._lake, wrong) from wrong

    def _answer(self, question: str, values: dict[str, object], rows_max: int | None) -> Answer:
        self._look_at(question)
        found = self._connection.execute(question, values)
        columns = [str(column[0]) for column in found.description or ()]
        if rows_max is None:
            return Answer(columns, found.fetchall())
        rows = found.fetchmany(rows_max + 1)
        return Answer(columns, rows[:rows_max], is_cut=len(rows) > rows_max)

    def _look_at(self, question: str) -> None:
        # A view reads the head of every file of its table, so only those that are named exist.
        lowered = question.lower()
        for name in sorted(name for name in TABLES if name in lowered and name not in self._viewed):
            self._connection.execute(f"create view {name} as {view_sql(self._lake, name)}")
            self._viewed.add(name)

    def _refuse_writes(self, question: str) -> None:
        question.encode()
        explained = _EXPLAIN.fullmatch(question)
        # What is explained with ANALYZE is also done; so this is asked of what is explained.
        statements = self._connection.extract_statements(explained[1] if explained else question)
        if len(statements) != 1:
            raise _refusal(question, "one statement", f"found {len(statements)} of them")
        if statements[0].type != duckdb.StatementType.SELECT:
            is_pivot = statements[0].type == duckdb.StatementType.MULTI
            raise _refusal(question, "a SELECT", _PIVOT if is_pivot else _READ_ONLY)


def _open(lake: Path) -> duckdb.DuckDBPyConnection:
    # Nothing is fetched, and nothing but the lake is read.
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    connection.execute("set TimeZone = 'UTC'")
    register_functions(connection)
    folders = [f"{lake}/", f"{escaped(lake)}/"]
    connection.execute("set allowed_directories = $folders", {"folders": folders})
    connection.execute("set enable_external_access = false")
    return connection


def _why(wrong: Exception) -> str:
    """What the database says; of tables it would name its own, so ours are named instead."""
    unknown = _NO_TABLE.search(str(wrong))
    if unknown is None:
        return str(wrong)
    return f"there is no table {unknown[1]!r}; there are {', '.join(ASKED_TABLES)}"


def _refusal(question: str, rule: str, why: str) -> SettingsError:
    hint = " ".join(line.strip() for line in why.splitlines() if line.strip())
    return SettingsError("sql", shorten(question, QUESTION_CHARS), rule, hint=hint)
