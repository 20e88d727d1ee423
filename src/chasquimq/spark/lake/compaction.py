"""Makes few files of many, and one row of those that merge; needs no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa

from chasquimq.spark.lake.checkpoints import own_folder
from chasquimq.spark.lake.files import FileFacts, TableWriter, write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.lake.manifest import Manifest, ManifestFile
from chasquimq.spark.lake.reading import JOBS_MOVE
from chasquimq.spark.lake.sketches import MERGE_LIST_SQL, register_functions
from chasquimq.spark.lake.table_shape import PARTITION, Table, merge_sql
from chasquimq.spark.lake.table_sql import rows_of
from chasquimq.spark.lake.tables import SILVER_JOBS, SILVER_JOBS_PARTS, SILVER_OPEN, TABLES

# It has no types, and is used here alone.
_dataset: Any = import_module("pyarrow.dataset")
_TAG: Final = "compact"
_SMALL_BYTES: Final = 4 * 1024 * 1024
# Fewer small files than these are not worth a rewrite; tables of parts are small and often read.
_FILES_MIN: Final = 8
_PARTS_MIN: Final = 4
_ROWS_AT_ONCE: Final = 65_536
_REPLACED: Final = frozenset({SILVER_OPEN.name, "gold_audit"})


class Compacted(msgspec.Struct, frozen=True):
    """A table whose files were rewritten: how many they were, and how many they are."""

    table: str
    files_before: int
    files_after: int


def compact(lake: Lake) -> list[Compacted]:
    """Compact every table of a lake that the caller holds."""
    pending = move_file(lake.path)
    # A move of the same process that failed on the way comes first.
    pending.settle(lake)
    done = [_compact(lake, table, pending) for table in TABLES.values()]
    return [one for one in done if one.files_before != one.files_after]


def move_file(lake: Path) -> ManifestFile:
    """Where a move of parts to jobs is written down until both tables have it."""
    return ManifestFile(own_folder(lake) / "jobs-move.manifest")


def _compact(lake: Lake, table: Table, pending: ManifestFile) -> Compacted:
    before = len(lake.files(table.name))
    if table.name == SILVER_JOBS_PARTS.name:
        _move_parts(lake, pending)
    elif table.name == SILVER_JOBS.name or not table.keys:
        _join_files(lake, table)
    else:
        _merge_days(lake, table)
    return Compacted(table.name, before, len(lake.files(table.name)))


def _join_files(lake: Lake, table: Table) -> None:
    """The same rows in fewer files; those that are large enough are let be."""
    if table.name in _REPLACED:
        return
    for day in lake.days(table.name):
        paths = lake.files(table.name, day)
        small = [path for path in paths if path.stat().st_size < _SMALL_BYTES]
        if len(small) >= _FILES_MIN:
            adds = _joined(lake, table, small, date.fromisoformat(day))
            removes = lake.relative(table.name, small)
            lake.commit(Change(table=table.name, adds=adds, removes=removes, rows_change=False))


def _joined(lake: Lake, table: Table, paths: Sequence[Path], day: date) -> list[FileFacts]:
    writer = TableWriter(lake.path, table, _TAG)
    stored = pa.schema([field for field in table.arrow if field.name != PARTITION])
    rows: Any = _dataset.dataset(paths, schema=stored, format="parquet")
    # Read ahead is memory that is not needed: the writer is not faster than the reader.
    ahead = {"batch_readahead": 1, "fragment_readahead": 1}
    for batch in rows.to_batches(batch_size=_ROWS_AT_ONCE, **ahead):
        writer.add(batch.append_column(PARTITION, pa.repeat(day, batch.num_rows)))
    return writer.close()


def _merge_days(lake: Lake, table: Table) -> None:
    """One row a key and day; days stay apart, so that each can be made again by itself."""
    for day in lake.days(table.name):
        paths = lake.files(table.name, day)
        if len(paths) >= _PARTS_MIN:
            merged = _merged(table, paths, day)
            adds = write_table(lake.path, table.name, merged, _TAG)
            removes = lake.relative(table.name, paths)
            lake.commit(Change(table=table.name, adds=adds, removes=removes, rows_change=False))


def _move_parts(lake: Lake, pending: ManifestFile) -> None:
    """Parts become jobs, merged by day; both tables change, whatever happens in between."""
    parts = SILVER_JOBS_PARTS.name
    days = lake.days(parts)
    if not days:
        return
    adds = [
        one
        for day in days
        for one in write_table(
            lake.path, SILVER_JOBS.name, _merged(SILVER_JOBS, lake.files(parts, day), day), _TAG
        )
    ]
    changes = [
        Change(table=SILVER_JOBS.name, adds=adds),
        Change(table=parts, removes=lake.relative(parts, lake.files(parts))),
    ]
    once = lake.next_once(JOBS_MOVE, [SILVER_JOBS.name, parts])
    pending.write(Manifest(once=once, changes=changes))
    pending.settle(lake)


def _merged(table: Table, paths: Sequence[Path], day: str) -> pa.Table:
    connection: Any = duckdb.connect()
    try:
        register_functions(connection)
        connection.execute("set TimeZone = 'UTC'")
        rows: pa.Table = connection.sql(_sql(table, paths)).to_arrow_table()
    finally:
        connection.close()
    rows = rows.append_column(PARTITION, pa.repeat(date.fromisoformat(day), rows.num_rows))
    # Of which batch a row is means nothing once it is of many.
    for name in set(table.names) - set(rows.column_names):
        rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows.select(table.names).cast(table.arrow)


def _sql(table: Table, paths: Sequence[Path]) -> str:
    merge = merge_sql(table, f"({rows_of(table, paths)})")
    sketched = [column.name for column in table.columns if column.merge == "kll"]
    if not sketched:
        return merge
    unions = ", ".join(f"{MERGE_LIST_SQL}({name}) as {name}" for name in sketched)
    return f"select * replace ({unions}) from ({merge})"  # noqa: S608  names are our own
