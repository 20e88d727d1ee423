"""Types of columns by the words of Spark's DDL, and small steps on Arrow columns."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# Spark takes an Arrow batch only where unit and zone are exactly its own.
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def micros(rows: pa.RecordBatch, name: str) -> pa.Array:
    """A column of moments as numbers."""
    return rows.column(name).cast(pa.int64())


def where(condition: pa.Array, values: pa.Array) -> pa.Array:
    """The values, and null where the condition does not hold."""
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def has_text(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Whether a column has a text, and not an empty one."""
    return pc.not_equal(pc.fill_null(rows.column(name), ""), "")
