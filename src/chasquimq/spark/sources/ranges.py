"""Ranges of streams, shared out to tasks by the rows they hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil

import msgspec
from pyspark.sql.datasource import InputPartition

# A task that fails is run again from its beginning, so it should not be a long one.
_ROWS_PER_TASK_MAX = 250_000


class StreamRange(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of a queue after one id up to another.

    `entry_count` is how many there must be, lost ones included; None: nobody counted.
    `found_count` is how many were there when it was planned.
    `loss` names a loss that is known already, but not how large it is.
    """

    queue: str
    after_id: str
    until_id: str
    entry_count: int | None
    row_count: int
    found_count: int = 0
    loss: str = ""


class ReadTask(InputPartition):
    """What one task reads: ranges of one queue or of many."""

    def __init__(self, ranges: Sequence[StreamRange]) -> None:
        super().__init__(tuple(ranges))

    @property
    def ranges(self) -> tuple[StreamRange, ...]:
        return self.value


def share_out(pieces: Sequence[StreamRange], tasks_min: int) -> list[ReadTask]:
    """Tasks with about the same number of rows each; neighbours of a queue become one range."""
    total = sum(_weight(piece) for piece in pieces)
    task_count = max(tasks_min, ceil(total / _ROWS_PER_TASK_MAX))
    bucket_of: dict[int, int] = {}
    passed = 0
    for at, piece in enumerate(pieces):
        # The middle of a piece decides, so that a piece on a border goes where most of it is.
        bucket_of[at] = (2 * passed + _weight(piece)) * task_count // (2 * total)
        passed += _weight(piece)
    buckets = groupby(range(len(pieces)), key=bucket_of.__getitem__)
    return [ReadTask(_merged([pieces[at] for at in places])) for _, places in buckets]


def _weight(piece: StreamRange) -> int:
    return max(1, piece.row_count)


def _merged(pieces: Sequence[StreamRange]) -> list[StreamRange]:
    merged: list[StreamRange] = []
    for piece in pieces:
        if merged and merged[-1].queue == piece.queue:
            merged[-1] = _union(merged[-1], piece)
        else:
            merged.append(piece)
    return merged


def _union(first: StreamRange, second: StreamRange) -> StreamRange:
    is_counted = first.entry_count is not None and second.entry_count is not None
    return msgspec.structs.replace(
        first,
        until_id=second.until_id,
        entry_count=(first.entry_count or 0) + (second.entry_count or 0) if is_counted else None,
        row_count=first.row_count + second.row_count,
        found_count=first.found_count + second.found_count,
    )
