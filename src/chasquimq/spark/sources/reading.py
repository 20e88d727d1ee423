"""Reads the ranges of a task: entries become batches, missing entries an error or a marker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from chasquimq.spark.sources.planning import TRIMMED, entries_lost, loss_sentence
from chasquimq.store.inspect.ranges import RangeStore, RawEntry

if TYPE_CHECKING:
    import pyarrow as pa

    from chasquimq.spark.sources.channel import Channel
    from chasquimq.spark.sources.options import SourceOptions
    from chasquimq.spark.sources.planning import ReadTask, StreamRange

_CLIENT_NAME = "chasqui-spark"
# A batch costs Spark about the same whatever its size: of 5,000 rows, half the rows a second.
_ROWS_PER_BATCH = 20_000


def open_store(options: SourceOptions) -> RangeStore:
    """A store that dials when first used."""
    return RangeStore(options.connection, name=_CLIENT_NAME)


def read_task(task: ReadTask, options: SourceOptions, channel: Channel) -> Iterator[pa.RecordBatch]:
    """All rows of all ranges, with a connection of its own."""
    store = open_store(options)
    try:
        for part in task.ranges:
            yield from _RangeReader(part, options, channel, store).batches()
    finally:
        store.close()


class _RangeReader:
    """Reads one range and counts: what is trimmed while it reads is noticed too."""

    def __init__(
        self, part: StreamRange, options: SourceOptions, channel: Channel, store: RangeStore
    ) -> None:
        self._part = part
        self._options = options
        self._channel = channel
        self._store = store
        self._seen = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._part.loss:
            yield self._gap(self._part.loss, None)
        yield from self._rows()
        missing = (self._part.entry_count or 0) - self._seen
        if missing > 0:
            yield self._gap(TRIMMED, missing)

    def _rows(self) -> Iterator[pa.RecordBatch]:
        gathered: list[RawEntry] = []
        for page in self._pages():
            self._seen += len(page)
            gathered += page
            if len(gathered) >= self._entries_for(_ROWS_PER_BATCH):
                yield from self._channel.to_batches(self._part.queue, gathered, self._options)
                gathered = []
        if gathered:
            yield from self._channel.to_batches(self._part.queue, gathered, self._options)

    def _pages(self) -> Iterator[list[RawEntry]]:
        part, key = self._part, self._channel.key(self._part.queue)
        count = self._entries_for(self._options.fetch_size)
        after_id = part.after_id
        while after_id != part.until_id:
            page = self._store.entries(key, after_id, part.until_id, count)
            if not page:
                return
            yield page
            after_id = page[-1][0].decode()

    def _entries_for(self, row_count: int) -> int:
        rows_per_entry = self._part.row_count // max(1, self._part.found_count)
        return max(1, row_count // max(1, rows_per_entry))

    def _gap(self, label: str, lost: int | None) -> pa.RecordBatch:
        queue, after_id = self._part.queue, self._part.after_id
        if self._options.fail_on_data_loss:
            raise entries_lost(queue, self._channel.place, after_id, label, lost)
        return self._channel.to_gap(queue, after_id, lost, label, loss_sentence(label, lost))
