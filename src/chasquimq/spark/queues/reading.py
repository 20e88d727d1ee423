"""Plans a read of a queue and reads its parts, each with a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from chasquimq.spark.queues.jobs import BatchMaker
from chasquimq.spark.queues.options import QueueOptions
from chasquimq.spark.sources.ranges import ReadTask, StreamRange, share_out
from chasquimq.store.inspect.pages import RawMember
from chasquimq.store.inspect.ranges import (
    HIGHEST,
    LOWEST,
    NO_ENTRY,
    KeptResult,
    QueueReadStore,
    RawEntry,
)

_ROWS_PER_BATCH = 10_000
_BYTES_PER_BATCH = 8 * 1024 * 1024
# Pieces that a task is put together from: the more, the more even, and the more questions.
_PIECES_PER_TASK = 8


class ScoreRange(InputPartition):
    """Delayed jobs whose scores lie between two; the bounds are as ZRANGEBYSCORE takes them."""

    def __init__(self, low: str, high: str) -> None:
        super().__init__((low, high))


class Walk(InputPartition):
    """Everything, by one walk."""

    def __init__(self) -> None:
        super().__init__(None)


class QueueReader(DataSourceReader):
    """Reads what is in a queue now; what leaves while it is read may be missing, nothing is twice."""

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        store = self._open()
        try:
            return self._plan(store)
        finally:
            store.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        store = self._open()
        is_json = not self._options.payload_schema
        maker = BatchMaker(
            self._options.queue, self._options.read, self._schema, is_json=is_json
        )  # fmt: skip
        try:
            for page in _gathered(self._pages(store, partition)):
                yield maker.batch(page)
        finally:
            store.close()

    def _plan(self, store: QueueReadStore) -> Sequence[InputPartition]:
        place, task_count = self._options.read, self._options.min_partitions
        if place == "results":
            return [Walk()]
        if place == "delayed":
            edges = store.score_edges(task_count)
            lows, highs = [LOWEST, *edges], [*[f"({edge}" for edge in edges], HIGHEST]
            return [ScoreRange(low, high) for low, high in zip(lows, highs, strict=True)]
        pieces = _pieces(self._options.queue, store, self._key(store), task_count)
        return list(share_out(pieces, task_count)) if pieces else []

    def _pages(self, store: QueueReadStore, part: InputPartition) -> Iterator[Sequence[Any]]:
        count = self._options.fetch_size
        if isinstance(part, ReadTask):
            for one in part.ranges:
                yield from store.pages(self._key(store), one.after_id, one.until_id, count)
        elif isinstance(part, ScoreRange):
            low, high = part.value
            yield from store.delayed(low, high, count)
        elif isinstance(part, Walk):
            yield from store.results()
        # Where there is nothing to read, Spark asks nevertheless, with a partition of its own.

    def _key(self, store: QueueReadStore) -> str:
        return store.keys.dlq if self._options.read == "dlq" else store.keys.stream

    def _open(self) -> QueueReadStore:
        return QueueReadStore(self._options.queue, self._options.connection)


def _pieces(queue: str, store: QueueReadStore, key: str, task_count: int) -> list[StreamRange]:
    pieces: list[StreamRange] = []
    after_id = NO_ENTRY
    for part in store.stretches(key, task_count * _PIECES_PER_TASK):
        pieces.append(
            StreamRange(
                queue=queue, after_id=after_id, until_id=part.last_id,
                entry_count=part.entry_count, row_count=part.row_count,
            )
        )  # fmt: skip
        after_id = part.last_id
    return pieces


def _gathered(pages: Iterator[Sequence[Any]]) -> Iterator[list[Any]]:
    """Pages as long lists: a batch costs Spark about the same whatever its size."""
    gathered: list[Any] = []
    size_bytes = 0
    for page in pages:
        gathered += page
        size_bytes += sum(map(_bytes_of, page))
        if len(gathered) >= _ROWS_PER_BATCH or size_bytes >= _BYTES_PER_BATCH:
            yield gathered
            gathered, size_bytes = [], 0
    if gathered:
        yield gathered


def _bytes_of(one: RawEntry | RawMember | KeptResult) -> int:
    if isinstance(one, KeptResult):
        return len(one.result or b"")
    # An entry has its bytes in its fields, a member is bytes by itself.
    head, rest = one[0], one[1]
    return len(head) + (len(rest) if isinstance(rest, bytes) else sum(map(len, rest)))
