"""Runs the streaming query of a channel, whose tasks write the files of bronze and silver."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from chasquimq.errors import (
    ConnectionLost,
    PreconditionFailed,
    ProcessLate,
    SparkFailed,
    StoreError,
)
from chasquimq.model.log import get_logger
from chasquimq.spark.failures import Lateness, complaint, complaint_kind, is_late_process
from chasquimq.spark.lake.checkpoints import Checkpoint
from chasquimq.spark.lake.extent import last_ids
from chasquimq.spark.pipeline.channels import BRONZE
from chasquimq.spark.pipeline.writers import FACTS_DDL, land_events, land_history
from chasquimq.spark.sources.channel import Channel
from chasquimq.spark.sources.events import EVENTS
from chasquimq.spark.sources.history import HISTORY
from chasquimq.spark.sources.options import SourceOptions, parse_options
from chasquimq.spark.sources.planning import ReadTask
from chasquimq.spark.sources.reading import read_task
from chasquimq.spark.sources.source import ChannelStreamReader
from chasquimq.store.net.address import dialled_url
from chasquimq.store.net.errors import error_from_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from chasquimq.spark.lake.lake import Lake
    from chasquimq.spark.pipeline.batches import Batches
    from chasquimq.spark.pipeline.settings import PipelineSettings

logger = get_logger(__name__)
FORMAT: Final = "chasqui.landing"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"


class ChannelQuery:
    """The one query of a channel; it may be started again where it stopped."""

    def __init__(
        self,
        session: SparkSession,
        lake: Lake,
        settings: PipelineSettings,
        checkpoint: Checkpoint,
        batches: Batches,
    ) -> None:
        self._session = session
        self._lake = lake
        self._settings = settings
        self._checkpoint = checkpoint
        self._batches = batches
        session.dataSource.register(LandingSource)

    def read_all(self, queues: Sequence[str]) -> None:
        """Read what is there now, and return; a process that was late gets more chances."""
        lateness = Lateness()
        while True:
            try:
                self.wait(self._writer(queues).trigger(availableNow=True).start())
            except ProcessLate as late:
                lateness.bear(late)
                logger.warning("the query begins again", extra={"error": str(late)})
            else:
                return

    def follow(self, queues: Sequence[str]) -> StreamingQuery:
        """Read from now on, a batch each trigger."""
        every = f"{round(self._settings.trigger_s * 1_000)} milliseconds"
        return self._writer(queues).trigger(processingTime=every).start()

    def wait(self, query: StreamingQuery) -> None:
        """Wait for the end of a query.

        Raises:
            StoreError, SparkFailed: the query failed.
        """
        from pyspark.errors import StreamingQueryException

        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise self._failure(error) from error

    def check(self, query: StreamingQuery) -> None:
        """Look whether a query that should go on does.

        Raises:
            StoreError, SparkFailed: the query failed.
        """
        if not query.isActive:
            self.wait(query)

    def _failure(self, error: Exception) -> Exception:
        if self._batches.error is not None:
            return self._batches.error
        sentence = complaint(error)
        if sentence is not None:
            return _ours(complaint_kind(error), sentence)
        if is_late_process(error):
            return ProcessLate(
                f"the query of the {self._batches.channel} needs a Python process, which did not "
                "start within Spark's ten seconds; this machine is busy, or its Python is broken"
            )
        why = " ".join(str(error).split())[:500]
        return SparkFailed(
            f"the query of the {self._batches.channel} must go on, but failed: {why}; start it "
            "again, it goes on where it was"
        )

    def _resumed(self, queues: Sequence[str]) -> dict[str, str]:
        """Where to begin without a checkpoint: behind what the lake has, so nothing is twice."""
        if self._checkpoint.has_begun:
            return {}
        places = last_ids(self._lake, BRONZE[self._batches.channel], queues)
        return {"startingOffsets": json.dumps(places)} if places else {}

    def _writer(self, queues: Sequence[str]):  # noqa: ANN202  Spark has no public name for it
        options = source_options(self._settings, queues)
        source = self._session.readStream.format(FORMAT).options(
            lake=str(self._lake.path),
            tag=self._checkpoint.app_id,
            channel=self._batches.channel,
            **options,
            **self._resumed(queues),
        )
        writer = source.load().writeStream.foreachBatch(self._batches)
        return writer.option("checkpointLocation", self._checkpoint.location)


def _ours(kind: str, sentence: str) -> StoreError:
    """The error that an executor raised, so that it is known whether it heals."""
    if kind in ("ConnectionLost", "ServerUnreachable"):
        return ConnectionLost(sentence)
    # What the server says begins with its code.
    return error_from_reply(sentence) if kind == "ServerRefused" else StoreError(sentence)


def source_options(settings: PipelineSettings, queues: Sequence[str]) -> dict[str, str]:
    """What the sources are given; they reach the server by its URL alone."""
    connection = settings.connection
    if connection.insecure_tls or connection.credential_provider is not None:
        found = "insecure_tls" if connection.insecure_tls else "credential_provider"
        rule = "a URL with all that it takes to connect"
        raise PreconditionFailed("connection", found, rule, hint="executors know nothing else")
    return {
        "chasqui.redis.url": dialled_url(connection),
        "subscribe": ",".join(queues),
        "maxOffsetsPerTrigger": str(settings.max_rows_per_batch),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
    }


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
