"""Reads a channel, once or in batches: follows the queues, plans here and reads in tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from chasquimq.errors import SettingsError
from chasquimq.spark.offsets import Offsets, Position, from_json, to_json, went_back
from chasquimq.spark.sources.options import EARLIEST, LATEST, Edge, Place, SourceOptions
from chasquimq.spark.sources.planning import Planner, ReadTask, share_out
from chasquimq.spark.sources.reading import open_store, read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from chasquimq.spark.sources.channel import Channel
    from chasquimq.store.inspect.ranges import RangeStore

_SEQ_MAX = 2**64 - 1


def batch_reader(options: SourceOptions, channel: Channel) -> DataSourceReader:
    """A reader that ends; Spark lets it see filters only where both sides agreed to it."""
    return (FilteredReader if options.filter_pushdown else ChannelReader)(options, channel)


class ChannelReader(DataSourceReader):
    """Reads a channel once, from one place to another."""

    def __init__(self, options: SourceOptions, channel: Channel) -> None:
        if options.starting_offsets == LATEST:
            raise SettingsError("startingOffsets", LATEST, "earliest or JSON where the read ends")
        if options.ending_offsets == EARLIEST:
            raise SettingsError("endingOffsets", EARLIEST, "latest or JSON")
        self._options = options
        self._channel = channel
        self._only: frozenset[str] | None = None

    def partitions(self) -> list[InputPartition]:
        store = open_store(self._options)
        try:
            subscription = Subscription(self._options, self._channel, store, only=self._only)
            pieces = subscription.planner.ranges(*subscription.span())
        finally:
            store.close()
        return list(share_out(pieces, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark asks nevertheless, with a partition of its own.
        if isinstance(partition, ReadTask):
            yield from read_task(partition, self._options, self._channel)


class FilteredReader(ChannelReader):
    """The same, and a filter on `queue` spares reading the others."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        for one in filters:
            if isinstance(one, EqualTo) and one.attribute == ("queue",):
                self._keep([one.value])
            elif isinstance(one, In) and one.attribute == ("queue",):
                self._keep(one.value)
            else:
                yield one

    def _keep(self, queues: Iterable[Any]) -> None:
        wanted = frozenset(queues)
        self._only = wanted if self._only is None else self._only & wanted


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a channel batch after batch.

    Spark plans in one long-lived process and reads in others, so whatever plans is made when
    first used and never travels.
    """

    def __init__(self, options: SourceOptions, channel: Channel) -> None:
        if options.ending_offsets != LATEST:
            raise SettingsError(
                "endingOffsets", "a place", "left out where the read goes on for ever"
            )
        self._options = options
        self._channel = channel
        self._subscription: Subscription | None = None
        self._target: Offsets | None = None

    def __reduce__(self) -> tuple[type, tuple[SourceOptions, Channel]]:
        return type(self), (self._options, self._channel)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  Spark's name
        return to_json(self._planning().start())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._planning().look_again()
        self._target = self._planning().tails()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802  Spark's name
        planning = self._planning()
        queues = planning.queues() if self._target is None else list(self._target)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = planning.planner.advance(from_json(start), queues, rows_max, self._target)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802  Spark's name
        return to_json(self._planning().planner.tails) or None

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        pieces = self._planning().planner.ranges(from_json(start), from_json(end))
        return list(share_out(pieces, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask), "a stream is read in the tasks it was planned in"
        return read_task(partition, self._options, self._channel)

    def stop(self) -> None:
        """Let go of the server; the next plan dials again."""
        if self._subscription is not None:
            self._subscription.close()

    def _planning(self) -> Subscription:
        if self._subscription is None:
            store = open_store(self._options)
            self._subscription = Subscription(self._options, self._channel, store)
        return self._subscription


class Subscription:
    """The queues of a query; `only` keeps it to some of them."""

    def __init__(
        self,
        options: SourceOptions,
        channel: Channel,
        store: RangeStore,
        *,
        only: frozenset[str] | None = None,
    ) -> None:
        self.planner = Planner(options, channel, store)
        self._options = options
        self._channel = channel
        self._store = store
        self._only = only
        self._found: list[str] = []
        self._look_again_s = 0.0

    def start(self) -> Offsets:
        """Where a query begins that has not begun before."""
        return self._start(self.queues())

    def span(self) -> tuple[Offsets, Offsets]:
        """Where a query that reads once begins and ends, in all queues that have something to read.

        A stream that ends before the beginning has, if it is read to its end, been made again.
        """
        # A queue that appears between two looks would have an end and no beginning.
        queues = self.queues()
        start = self._start(queues)
        end = self._placed(queues, self._options.ending_offsets, otherwise=LATEST)
        is_ahead = {queue: start[queue].is_before(end[queue].entry_id) for queue in queues}
        return start, {
            queue: end[queue]
            for queue in queues
            if is_ahead[queue] or (self._ends_last(queue) and went_back(start[queue], end[queue]))
        }

    def tails(self) -> Offsets:
        """Behind the last entry of every queue."""
        return self.planner.lasts(self.queues())

    def queues(self) -> list[str]:
        """The queues that are subscribed and wanted."""
        names = self._subscribed()
        return names if self._only is None else [name for name in names if name in self._only]

    def look_again(self) -> None:
        """Look for new queues at the next call, however short ago the last look was."""
        self._look_again_s = 0.0

    def close(self) -> None:
        """Let go of the server."""
        self._store.close()

    def _subscribed(self) -> list[str]:
        pattern = self._options.subscribe_pattern
        if not pattern:
            return list(self._options.subscribe)
        # A look walks all keys of the server, so it is not taken at every trigger.
        if time.monotonic() >= self._look_again_s:
            self._found = self._store.queues(pattern, self._channel.place)
            self._look_again_s = time.monotonic() + self._options.discover_every_ms / 1_000
        return self._found

    def _start(self, queues: list[str]) -> Offsets:
        since_ms = self._options.starting_timestamp_ms
        if since_ms is None:
            return self._placed(queues, self._options.starting_offsets, otherwise=EARLIEST)
        return self.planner.at(dict.fromkeys(queues, _just_before(since_ms)))

    def _ends_last(self, queue: str) -> bool:
        place = self._options.ending_offsets
        return (place if isinstance(place, str) else place.get(queue, LATEST)) == LATEST

    def _placed(self, queues: list[str], place: Place, *, otherwise: Edge) -> Offsets:
        if isinstance(place, str):
            place = dict.fromkeys(queues, place)
        wanted = {queue: place.get(queue, otherwise) for queue in queues}
        return (
            self.planner.firsts([queue for queue, where in wanted.items() if where == EARLIEST])
            | self.planner.lasts([queue for queue, where in wanted.items() if where == LATEST])
            | self.planner.at(
                {queue: where for queue, where in wanted.items() if isinstance(where, Position)}
            )
        )


def _just_before(moment_ms: int) -> Position:
    return Position(f"{moment_ms - 1}-{_SEQ_MAX}") if moment_ms else Position()
