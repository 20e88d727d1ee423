"""The tables of a lake as views of an in-memory database: rows of a key merged, no JVM or writes."""

# ruff: noqa: S608  names and paths are our own, and paths are quoted
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chasquimq.spark.lake.reading import file_paths, open_jobs, open_table
from chasquimq.spark.lake.sketches import GATHER_LIST_SQL
from chasquimq.spark.lake.table_shape import Table, merge_sql
from chasquimq.spark.lake.table_sql import rows_of
from chasquimq.spark.lake.tables import SILVER_JOBS, SILVER_JOBS_PARTS, TABLES

if TYPE_CHECKING:
    from collections.abc import Container

    from deltalake import DeltaTable


def view_sql(lake: Path, name: str) -> str:
    """SQL that yields a table as its readers should see it; a table that is not there is empty."""
    if name == SILVER_JOBS_PARTS.name:
        return rows_sql(lake, SILVER_JOBS_PARTS)
    if name == SILVER_JOBS.name:
        halves = open_jobs(lake)
        whole = _select(SILVER_JOBS, halves.jobs)
        return _jobs(f"{whole} union all {_select(SILVER_JOBS_PARTS, halves.parts, halves.moved)}")
    table = TABLES[name]
    return _with_sketches(table, merge_sql(table, f"({rows_sql(lake, table)})"))


def rows_sql(lake: Path, table: Table) -> str:
    """SQL for all rows as they were appended."""
    return _select(table, open_table(lake, table.name))


def _select(table: Table, found: DeltaTable | None, moved: Container[Path] = ()) -> str:
    return rows_of(table, [path for path in file_paths(found) if path not in moved])


def _jobs(rows: str) -> str:
    # Most jobs are one row. Grouping all of them by text costs a second for two million, finding
    # the few that are not by a hash a fraction of it; two jobs of one hash are grouped, too.
    key = f"hash({', '.join(SILVER_JOBS.keys)})"
    single = ", ".join(column.name for column in SILVER_JOBS.columns if column.merge)
    is_many = f"{key} in (select jobs_key from jobs_many)"
    return (
        f"with jobs_rows as ({rows}), jobs_many as ("
        f"select {key} as jobs_key from jobs_rows group by all having count(*) > 1) "
        f"select {single} from jobs_rows where not {is_many} "
        f"union all {merge_sql(SILVER_JOBS, f'(select * from jobs_rows where {is_many})')}"
    )


def _with_sketches(table: Table, sql: str) -> str:
    sketched = [column.name for column in table.columns if column.merge == "kll"]
    if not sketched:
        return sql
    # Most keys have one part, and that is the sketch itself.
    merges = ", ".join(
        f"case when len({name}) = 1 then {name}[1] else {GATHER_LIST_SQL}({name}) end as {name}"
        for name in sketched
    )
    return f"select * replace ({merges}) from ({sql})"
