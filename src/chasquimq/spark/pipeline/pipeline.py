"""Carries history and events into the tables of a lake, batch after batch, each exactly once."""

from __future__ import annotations

import threading
import time
from datetime import date
from typing import TYPE_CHECKING, Final

from chasquimq.errors import NotSupportedError, ProcessLate, StoreError
from chasquimq.model.log import get_logger
from chasquimq.spark.failures import Lateness
from chasquimq.spark.lake.checkpoints import only_pipeline
from chasquimq.spark.lake.lake import Lake
from chasquimq.spark.pipeline.batches import OnBatch
from chasquimq.spark.pipeline.channels import by_channel
from chasquimq.spark.pipeline.context import Workplace
from chasquimq.spark.pipeline.readiness import reach
from chasquimq.spark.pipeline.settings import PipelineRun, PipelineSettings
from chasquimq.spark.query.queries import refuse_empty
from chasquimq.store.net.errors import Action, action_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from chasquimq.spark.pipeline.streaming import ChannelQuery

_CONNECT = "pyspark.sql.connect"
logger = get_logger(__name__)
# Samples wait this long for a batch to take them along.
_FLUSH_AFTER_S: Final = 10.0
# A look for new queues walks all keys of the server.
_LOOK_AGAIN_S: Final = 30.0
_LOOK_AGAIN_EMPTY_S: Final = 1.0
_PAUSE_S: Final = 1.0
_PAUSE_S_MAX: Final = 30.0
Running = list[tuple["ChannelQuery", "StreamingQuery"]]


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
        """Read until asked to stop; a batch that was begun is finished.

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


class Following:
    """One run of a pipeline without an end."""

    def __init__(self, work: Workplace, stop: threading.Event) -> None:
        self._work = work
        self._stop = stop
        self.channels: dict[str, str] = {}
        self._lateness = Lateness()

    def run(self) -> None:
        """Return when asked to stop; a server that goes away is waited for."""
        pause_s = _PAUSE_S
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                self._follow()
            except StoreError as error:
                if action_for(error) is Action.RAISE:
                    raise
                logger.warning(
                    "the server does not answer, the pipeline waits", extra={"error": str(error)}
                )
                self._stop.wait(pause_s)
            except ProcessLate as late:
                self._lateness.bear(late)
                logger.warning("the pipeline begins again", extra={"error": str(late)})
            was_long = time.monotonic() - began_s > _PAUSE_S_MAX
            pause_s = _PAUSE_S if was_long else min(_PAUSE_S_MAX, pause_s * 2)

    def _follow(self) -> None:
        """Follow the queues that there are, until there are others."""
        self.channels = self._work.channels()
        running: Running = []
        try:
            for channel, queues in by_channel(self.channels).items():
                query = self._work.query(channel)
                running.append((query, query.follow(queues)))
            self._watch(running)
        finally:
            self._work.close_batches()
            for _, stream in running:
                stream.stop()

    def _watch(self, running: Running) -> None:
        wait_s = _LOOK_AGAIN_S if running else _LOOK_AGAIN_EMPTY_S
        look_again_s = time.monotonic() + wait_s
        while not self._stop.wait(self._work.settings.trigger_s):
            for query, stream in running:
                query.check(stream)
            if self._lateness.count and all(stream.lastProgress for _, stream in running):
                self._lateness.forget()
            self._sample()
            self._work.tidy_if_due()
            self._work.audit_if_due(self.channels)
            if time.monotonic() >= look_again_s:
                if self._work.channels() != self.channels:
                    return
                look_again_s = time.monotonic() + wait_s

    def _sample(self) -> None:
        self._work.sample(self.channels)
        if self._work.idle_s > _FLUSH_AFTER_S:
            self._work.flush()
