"""What the two streams that Spark reads have in common, as a value: key, size of entries, rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chasquimq.store.inspect.ranges import RawEntry

if TYPE_CHECKING:
    import pyarrow as pa

    from chasquimq.spark.sources.options import SourceOptions

ToBatches = Callable[[str, Sequence[RawEntry], "SourceOptions"], "Iterator[pa.RecordBatch]"]
ToGap = Callable[[str, str, int | None, str, str], "pa.RecordBatch"]


@dataclass(frozen=True)
class Channel:
    """A stream of each queue, under its `key`.

    `rows_field` is where an entry says how many rows it holds. Entries are measured
    in steps: fewer are not worth a task, more would keep others waiting. So few as
    `unmeasured_max` go to one task unseen, where an entry is a row.
    """

    place: str
    key: Callable[[str], str]
    rows_field: str
    step_min: int
    step_max: int
    unmeasured_max: int
    to_batches: ToBatches
    to_gap: ToGap

    def step(self, wanted: int) -> int:
        """How many entries to measure at once."""
        return max(self.step_min, min(wanted, self.step_max))
