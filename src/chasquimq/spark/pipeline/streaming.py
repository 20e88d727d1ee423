"""Starts the streaming query of a channel, and says in our words why one failed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from chasquimq.errors import (
    ConnectionLost,
    PreconditionFailed,
    ProcessLate,
    SparkFailed,
    StoreError,
)
from chasquimq.model.log import get_logger
from chasquimq.spark.failures import Lateness, complaint, complaint_kind, is_late_process
from chasquimq.spark.lake.extent import last_ids
from chasquimq.spark.pipeline.channels import BRONZE
from chasquimq.spark.pipeline.source import FORMAT, LandingSource
from chasquimq.store.net.address import dialled_url
from chasquimq.store.net.errors import error_from_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from chasquimq.spark.lake.checkpoints import Checkpoint
    from chasquimq.spark.lake.lake import Lake
    from chasquimq.spark.pipeline.batches import Batches
    from chasquimq.spark.pipeline.settings import PipelineSettings

logger = get_logger(__name__)


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
        if self._batches.trouble is not None:
            return self._batches.trouble
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
    """The error that an executor raised, so that it can be told whether it heals."""
    if kind in ("ConnectionLost", "ServerUnreachable"):
        return ConnectionLost(sentence)
    # What the server says begins with its code.
    return error_from_reply(sentence) if kind == "ServerRefused" else StoreError(sentence)


def source_options(settings: PipelineSettings, queues: Sequence[str]) -> dict[str, str]:
    """What the sources are told; they reach the server by its URL alone."""
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
