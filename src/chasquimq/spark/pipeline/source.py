"""The source that the pipeline reads: tasks write what they decode, and yield facts about it.

Rows that pass through the JVM cost it more than all else together, so the tasks that decode them
write the files of bronze and silver themselves. What reaches the driver is a few rows a task: which
files there are, which entries were seen. Files count for nothing until they are committed.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from chasquimq.spark.lake.checkpoints import Checkpoint
from chasquimq.spark.pipeline.writers import FACTS_DDL, land_events, land_history
from chasquimq.spark.sources.channel import Channel
from chasquimq.spark.sources.events import EVENTS
from chasquimq.spark.sources.history import HISTORY
from chasquimq.spark.sources.options import SourceOptions, parse_options
from chasquimq.spark.sources.ranges import ReadTask
from chasquimq.spark.sources.reading import read_task
from chasquimq.spark.sources.source import ChannelStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "chasqui.landing"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"


class LandingSource(DataSource):
    """`lake` and `tag` say where and under which name to write; the rest is as in the sources."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {key.lower(): value for key, value in options.items()}
        self._lake, self._tag = Path(given.pop("lake")), given.pop("tag")
        self._channel = HISTORY if given.pop("channel") == HISTORY.place else EVENTS
        self._options = parse_options(given)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return FACTS_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's
        return LandingReader(self._options, self._channel, self._lake, self._tag)


class LandingReader(ChannelStreamReader):
    """Plans as the sources do; its tasks write."""

    def __init__(self, options: SourceOptions, channel: Channel, lake: Path, tag: str) -> None:
        super().__init__(options, channel)
        self._lake = lake
        self._tag = tag

    # It has more to carry.
    def __reduce__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
    ) -> tuple[type, tuple[SourceOptions, Channel, Path, str]]:
        return type(self), (self._options, self._channel, self._lake, self._tag)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask), "a stream is read in the tasks it was planned in"
        batches = read_task(partition, self._options, self._channel)
        batch_id = _batch_id()
        tag = f"{self._tag}-{batch_id}"
        if self._channel.place == HISTORY.place:
            yield land_history(batches, self._lake, tag, batch_id).fact()
            return
        staging = Checkpoint(self._lake, self._channel.place).staging
        yield land_events(batches, self._lake, staging, tag, batch_id).fact()


def _batch_id() -> int:
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    assert text is not None, "the tasks of a streaming query know which batch they are of"
    return int(text)
