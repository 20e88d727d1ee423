"""The data source `chasqui.events`: events of any writer as rows, in batches and as a stream."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from chasquimq.spark.schema import EVENTS_DDL
from chasquimq.spark.sources.channel import Channel
from chasquimq.spark.sources.events_arrow import event_batch, gap_batch
from chasquimq.spark.sources.options import SourceOptions, parse_options
from chasquimq.spark.sources.source import ChannelStreamReader, batch_reader
from chasquimq.store.inspect.ranges import RawEntry
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    import pyarrow as pa


class EventsSource(DataSource):
    """`spark.read.format("chasqui.events")`; a wrong option is refused before anything is read."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "chasqui.events"

    def schema(self) -> str:
        return EVENTS_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(self._options, EVENTS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's
        return ChannelStreamReader(self._options, EVENTS)


def _key(queue: str) -> str:
    return QueueKeys(queue).events


def _batches(
    queue: str, entries: Sequence[RawEntry], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    yield event_batch(queue, entries, with_extra=options.include_extra)


# An entry is one row of about 200 bytes; to measure it costs the server half of what to read it.
EVENTS = Channel(
    place="events",
    key=_key,
    rows_field="",
    step_min=250,
    step_max=1_000,
    unmeasured_max=10_000,
    to_batches=_batches,
    to_gap=gap_batch,
)
