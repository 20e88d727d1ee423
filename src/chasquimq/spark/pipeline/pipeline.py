"""Carries history and events into the tables of a lake, batch after batch, each exactly once."""

from __future__ import annotations

import threading
from datetime import date
from typing import TYPE_CHECKING

from chasquimq.errors import NotSupportedError
from chasquimq.spark.lake.checkpoints import only_pipeline
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.pipeline.batches import OnBatch
from chasquimq.spark.pipeline.channels import by_channel
from chasquimq.spark.pipeline.context import Workplace
from chasquimq.spark.pipeline.readiness import reach
from chasquimq.spark.pipeline.run import Following
from chasquimq.spark.pipeline.settings import PipelineRun, PipelineSettings
from chasquimq.spark.query.queries import refuse_empty

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT = "pyspark.sql.connect"


class Pipeline:
    """One pipeline into one lake; a second one on the same lake is refused."""

    def __init__(self, session: SparkSession, settings: PipelineSettings) -> None:
        if type(session).__module__.startswith(_CONNECT):
            raise NotSupportedError(
                "the pipeline commits from the driver, so its session must have a master, got one "
                "of Spark Connect; use local[*] or spark://host:port"
            )
        self._session = session
        self._settings = settings
        self._lake = Lake(settings.lake)

    def once(self, on_batch: OnBatch | None = None) -> PipelineRun:
        """Read what is there, compact, and stop."""
        # A server that is not there must not leave an empty lake.
        reach(self._settings.connection)
        with only_pipeline(self._lake), self._workplace(on_batch) as work:
            channels = work.channels_soon()
            work.sample(channels)
            for channel, queues in by_channel(channels).items():
                work.query(channel).read_all(queues)
            work.sample(channels)
            work.flush()
            work.audit(channels)
            work.tidy()
            return work.summary(channels)

    def run(self, stop: threading.Event, on_batch: OnBatch | None = None) -> PipelineRun:
        """Read until told to stop; a batch that was begun is finished.

        A server that goes away is waited for. New queues are found within a minute.
        """
        with only_pipeline(self._lake), self._workplace(on_batch) as work:
            following = Following(work, stop)
            following.run()
            work.flush()
            work.last_audit(following.channels)
            work.tidy()
            return work.summary(following.channels)

    def backfill(self, day: date) -> PipelineRun:
        """Make the silver and gold rows of a day again, from bronze."""
        refuse_empty(self._lake.path)
        with only_pipeline(self._lake), self._workplace(None) as work:
            return work.backfill(day)

    def _workplace(self, on_batch: OnBatch | None) -> Workplace:
        return Workplace(self._session, self._lake, self._settings, on_batch)
