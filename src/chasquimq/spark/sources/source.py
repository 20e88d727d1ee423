"""The two ways Spark reads a channel: once, or in batches; both plan here and read in tasks."""

from __future__ import annotations

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
from chasquimq.spark.offsets import Offsets, from_json, to_json
from chasquimq.spark.sources.options import EARLIEST, LATEST, SourceOptions
from chasquimq.spark.sources.ranges import ReadTask, share_out
from chasquimq.spark.sources.reading import open_store, read_task
from chasquimq.spark.sources.subscription import Subscription

if TYPE_CHECKING:
    import pyarrow as pa

    from chasquimq.spark.sources.channel import Channel


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
        """Let go of the server; whoever plans again dials again."""
        if self._subscription is not None:
            self._subscription.close()

    def _planning(self) -> Subscription:
        if self._subscription is None:
            store = open_store(self._options)
            self._subscription = Subscription(self._options, self._channel, store)
        return self._subscription
