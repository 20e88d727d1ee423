"""Types of columns by the words of Spark's DDL, and small steps on Arrow columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
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


# Nothing runs or waits for longer: a number beyond it was broken on its way.
CENTURY_MS = 36_525 * 86_400_000
CENTURY_US = CENTURY_MS * 1_000
# The years 1 to 9999 are what Spark, Python and Parquet readers all can show; the last two
# centuries are left to what is added to a moment, a run and then a wait.
FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999 - 2 * CENTURY_MS
_EPOCH = datetime.fromtimestamp(0, UTC)


def known_ms(moment_ms: int) -> int | None:
    """The moment, or None where no calendar holds it."""
    return moment_ms if FIRST_MS <= moment_ms <= LAST_MS else None


def moment_of(moment_ms: int) -> datetime:
    """A moment in milliseconds as Python has it."""
    return _EPOCH + timedelta(milliseconds=moment_ms)


def moments_ms(offsets_ms: pa.Array, base_ms: pa.Array | int = 0) -> pa.Array:
    """Milliseconds that count from a base."""
    span = LAST_MS - FIRST_MS
    offsets_ms = within(offsets_ms, -span, span)
    moments = within(pc.add(offsets_ms, base_ms), FIRST_MS, LAST_MS)
    return pc.multiply(moments, 1_000).cast(TIMESTAMP)


def moments_us(offsets_us: pa.Array, base_ms: pa.Array | int = 0) -> pa.Array:
    """Microseconds that count from a base of milliseconds."""
    span_us = (LAST_MS - FIRST_MS) * 1_000
    offsets_us = within(offsets_us, -span_us, span_us)
    moments_us = pc.add(offsets_us, pc.multiply(base_ms, 1_000))
    return within(moments_us, FIRST_MS * 1_000, LAST_MS * 1_000 + 999).cast(TIMESTAMP)


def within(numbers: pa.Array, lowest: int, highest: int) -> pa.Array:
    """The numbers, and null where one lies outside."""
    edges = pc.min_max(numbers).as_py()
    if edges["min"] is None or (lowest <= edges["min"] and edges["max"] <= highest):
        return numbers
    is_within = pc.and_(pc.greater_equal(numbers, lowest), pc.less_equal(numbers, highest))
    return pc.if_else(is_within, numbers, pa.scalar(None, numbers.type))
