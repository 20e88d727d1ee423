"""Files of tables as DataFrames: those of a table as it is, and those not committed yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chasquimq.spark.lake.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from chasquimq.spark.lake.files import FileFacts
    from chasquimq.spark.lake.lake import Lake
    from chasquimq.spark.lake.table_shape import Table


def lake_frame(session: SparkSession, lake: Lake, name: str, day: str | None = None) -> DataFrame:
    """The rows of a table, or those of one day."""
    return _frame(session, lake.path / name, TABLES[name], map(str, lake.files(name, day)))


def landed_frame(
    session: SparkSession, folder: Path, table: Table, files: Iterable[FileFacts]
) -> DataFrame:
    """The rows of files that were only just written; `folder` is where the table lies."""
    base = folder / table.name
    return _frame(session, base, table, [f"{base}/{one.path}" for one in files])


def _frame(session: SparkSession, base: Path, table: Table, paths: Iterable[str]) -> DataFrame:
    every = list(paths)
    if not every:
        return session.createDataFrame([], table.ddl)
    # The day is in the name of a file's folder; columns that a file has not are empty.
    return session.read.schema(table.ddl).option("basePath", str(base)).parquet(*every)
