"""Writes rows of a table as Parquet files, one for each day, and returns what a commit must know."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.errors import PreconditionFailed, SettingsError
from chasquimq.spark.lake.durable import sync
from chasquimq.spark.lake.table_shape import PARTITION, Table
from chasquimq.spark.lake.tables import TABLES

# It has no types, and is used here alone.
_parquet: Any = import_module("pyarrow.parquet")
# Rows wait for more: small groups of rows cost every reader time.
_ROWS_PER_GROUP: Final = 131_072
# Nearly every row has a value of its own here, and a dictionary is only made to be given up.
_DISTINCT: Final = frozenset({
    "duration_us", "ended_at", "enqueued_at", "first_active_at", "job_id", "ready_at", "row",
    "run_us", "started_at", "total_ms", "updated_at", "wait_ms",
})  # fmt: skip
# Files can be skipped by what these columns hold; a task reads few queues, mostly one.
_SKIP_BY: Final = ("queue", "name")


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written and not yet committed; `path` is relative to its table."""

    table: str
    path: str
    day: str
    size_bytes: int
    row_count: int
    stats: str


class TableWriter:
    """Takes batches of one table and makes a file of each day they are about."""

    def __init__(self, lake: Path, table: Table, tag: str) -> None:
        self._folder = lake / table.name
        self._table = table
        self._tag = tag
        self._schema = pa.schema([field for field in table.arrow if field.name != PARTITION])
        self._days: dict[date, _DayFile] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, or none; they must have every column of the table, in any order."""
        for day, rows in _by_day(batch):
            self._day_file(day).add(rows.select(self._schema.names).cast(self._schema))

    def close(self) -> list[FileFacts]:
        """Write what is left; the facts of all files, in the order of their days."""
        return [self._days[day].close() for day in sorted(self._days)]

    def _day_file(self, day: date) -> _DayFile:
        if day not in self._days:
            self._days[day] = _DayFile(self._folder, self._table.name, self._schema, day, self._tag)
        return self._days[day]


def write_table(
    lake: Path, name: str, rows: pa.Table | pa.RecordBatch, tag: str
) -> list[FileFacts]:
    """Write a few rows at once; none at all make no file."""
    writer = TableWriter(lake, TABLES[name], tag)
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
    for batch in batches:
        writer.add(batch)
    return writer.close()


def read_files(folder: Path, table: Table, files: Sequence[FileFacts]) -> pa.Table:
    """The rows of files that were only just written, with their days; `folder` holds the table."""
    parts = [table.arrow.empty_table()]
    for one in files:
        # A day in the name of a folder is not looked for.
        rows: pa.Table = _parquet.read_table(folder / table.name / one.path, partitioning=None)
        days = pa.repeat(date.fromisoformat(one.day), rows.num_rows)
        parts.append(rows.append_column(PARTITION, days).select(table.names).cast(table.arrow))
    return pa.concat_tables(parts)


def unwritable(lake: Path) -> SettingsError:
    """The sentence about a folder that cannot be written to."""
    hint = "give it to the user that runs the pipeline, or name another with --lake"
    return PreconditionFailed("lake", str(lake), "a folder to write to", hint=hint)


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """All rows in one batch."""
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


class _DayFile:
    """One Parquet file; the day is in the name of its folder, not in its rows."""

    def __init__(self, folder: Path, table: str, schema: pa.Schema, day: date, tag: str) -> None:
        self._table = table
        self._schema = schema
        self._day = day.isoformat()
        self._name = f"{PARTITION}={self._day}/part-{tag}-{uuid.uuid4().hex}.parquet"
        self._path = folder / self._name
        self._is_new_day = not self._path.parent.is_dir()
        self._writer = _open_writer(self._path, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_count = 0
        self._row_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_count += rows.num_rows
        if self._waiting_count >= _ROWS_PER_GROUP:
            self._flush()

    def close(self) -> FileFacts:
        self._flush()
        self._writer.close()
        self._sync()
        metadata = _parquet.read_metadata(self._path)
        return FileFacts(
            table=self._table,
            path=self._name,
            day=self._day,
            size_bytes=os.path.getsize(self._path),  # noqa: PTH202  one call less a file
            row_count=self._row_count,
            stats=_stats(metadata, self._row_count),
        )

    def _sync(self) -> None:
        """Put the file on disk, and the names that lead to it."""
        sync(self._path)
        sync(self._path.parent)
        if self._is_new_day:
            sync(self._path.parent.parent)

    def _flush(self) -> None:
        if not self._waiting:
            return
        self._writer.write_table(pa.Table.from_batches(self._waiting), self._waiting_count)
        self._row_count += self._waiting_count
        self._waiting, self._waiting_count = [], 0


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    days = batch.column(PARTITION)
    assert not days.null_count, "every row is of a day, as the tables are kept by days"
    distinct = pc.unique(days)
    if len(distinct) == 1:
        yield distinct[0].as_py(), batch
        return
    for day in distinct:
        yield day.as_py(), batch.filter(pc.equal(days, day))


def _open_writer(path: Path, schema: pa.Schema) -> Any:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _parquet.ParquetWriter(
            path, schema,
            compression="zstd", compression_level=1,
            use_dictionary=[name for name in schema.names if name not in _DISTINCT],
        )  # fmt: skip
    except OSError as error:
        raise unwritable(path.parents[2]) from error


def _stats(metadata: Any, row_count: int) -> str:
    """What Delta keeps about a file, so that readers can leave it out."""
    lowest: dict[str, str] = {}
    highest: dict[str, str] = {}
    for column in range(metadata.num_columns):
        name = metadata.schema.column(column).name
        ranges = [metadata.row_group(at).column(column) for at in range(metadata.num_row_groups)]
        if name in _SKIP_BY and all(_has_range(one) for one in ranges):
            lowest[name] = min(one.statistics.min for one in ranges)
            highest[name] = max(one.statistics.max for one in ranges)
    return json.dumps({"numRecords": row_count, "minValues": lowest, "maxValues": highest})


def _has_range(chunk: Any) -> bool:
    return chunk.statistics is not None and chunk.statistics.has_min_max
