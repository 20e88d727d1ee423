"""Times of the wire as Arrow timestamps; what no calendar holds is unknown, not an error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.columns import TIMESTAMP

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
