"""Lakes written by hand: the rows that a test names, in tables as the pipeline writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasketches import kll_doubles_sketch
from deltalake import write_deltalake

from chasquimq.spark.table_schemas import TABLES
from chasquimq.spark.table_shape import PARTITION

NOON = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)


def minutes(count: float) -> datetime:
    """So many minutes after noon."""
    return NOON + timedelta(minutes=count)


def sketch(*values: float) -> bytes:
    """A sketch of these values, in the form that Spark writes."""
    made = kll_doubles_sketch()
    for value in values:
        made.update(float(value))
    return made.serialize()


def append(lake: Path, name: str, *rows: dict[str, Any]) -> None:
    """Append rows; columns that are not named are null, the day is that of noon."""
    table = TABLES[name]
    full = [
        {**dict.fromkeys(table.names), PARTITION: NOON.date(), **row} for row in rows
    ]  # fmt: skip
    written = pa.Table.from_pylist(full, schema=table.arrow)
    write_deltalake(str(lake / name), written, mode="append", partition_by=[PARTITION])
