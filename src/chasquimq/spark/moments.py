"""Times of the wire as Arrow timestamps; what no calendar holds is unknown, not an error."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.schema import TIMESTAMP

# The years 1 to 9999, which is what Spark, Python and Parquet readers all can show.
FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999


def known_ms(moment_ms: int) -> int | None:
    """The moment, or None where no calendar holds it."""
    return moment_ms if FIRST_MS <= moment_ms <= LAST_MS else None


def moments_ms(offsets_ms: pa.Array, base_ms: pa.Array | int = 0) -> pa.Array:
    """Milliseconds that count from a base."""
    span = LAST_MS - FIRST_MS
    offsets_ms = _within(offsets_ms, -span, span)
    moments = _within(pc.add(offsets_ms, base_ms), FIRST_MS, LAST_MS)
    return pc.multiply(moments, 1_000).cast(TIMESTAMP)


def moments_us(offsets_us: pa.Array, base_ms: pa.Array | int = 0) -> pa.Array:
    """Microseconds that count from a base of milliseconds."""
    span_us = (LAST_MS - FIRST_MS) * 1_000
    offsets_us = _within(offsets_us, -span_us, span_us)
    moments_us = pc.add(offsets_us, pc.multiply(base_ms, 1_000))
    return _within(moments_us, FIRST_MS * 1_000, LAST_MS * 1_000 + 999).cast(TIMESTAMP)


def _within(numbers: pa.Array, lowest: int, highest: int) -> pa.Array:
    edges = pc.min_max(numbers).as_py()
    if edges["min"] is None or (lowest <= edges["min"] and edges["max"] <= highest):
        return numbers
    is_within = pc.and_(pc.greater_equal(numbers, lowest), pc.less_equal(numbers, highest))
    return pc.if_else(is_within, numbers, pa.scalar(None, numbers.type))
