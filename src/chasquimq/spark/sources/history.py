"""The data source `chasqui.history`: finished attempts as rows, in batches and as a stream."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from chasquimq.spark.schema import ATTEMPTS_DDL
from chasquimq.spark.sources.channel import Channel
from chasquimq.spark.sources.history_arrow import attempt_batches, gap_batch
from chasquimq.spark.sources.options import SourceOptions, parse_options
from chasquimq.spark.sources.source import ChannelStreamReader, batch_reader
from chasquimq.store.inspect.ranges import RawEntry
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    import pyarrow as pa


class HistorySource(DataSource):
    """`spark.read.format("chasqui.history")`; a wrong option is refused before anything is read."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options, without=("includeExtra",))

    @classmethod
    def name(cls) -> str:
        return "chasqui.history"

    def schema(self) -> str:
        return ATTEMPTS_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return batch_reader(self._options, HISTORY)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's
        return ChannelStreamReader(self._options, HISTORY)


def _key(queue: str) -> str:
    return QueueKeys(queue).history


def _batches(
    queue: str, entries: Sequence[RawEntry], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    return attempt_batches(queue, entries)


# An entry holds up to 1,000 rows in about 50 kB.
HISTORY = Channel(
    place="history",
    key=_key,
    rows_field="n",
    step_min=1,
    step_max=16,
    unmeasured_max=0,
    to_batches=_batches,
    to_gap=gap_batch,
)
