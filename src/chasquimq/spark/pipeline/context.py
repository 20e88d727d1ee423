"""All that a pipeline holds while it runs: tables, server, queries, and what it has done so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Self

from chasquimq.errors import StoreError
from chasquimq.model.log import get_logger
from chasquimq.spark.lake.checkpoints import Checkpoint
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.lake.maintenance import Tidying
from chasquimq.spark.pipeline.audit.audit import audit
from chasquimq.spark.pipeline.audit.read_progress import ask_standing
from chasquimq.spark.pipeline.backfill import Backfill
from chasquimq.spark.pipeline.backlog import Backlog
from chasquimq.spark.pipeline.batches import Batches, ChannelTables, OnBatch
from chasquimq.spark.pipeline.channel_tables import EventsTables, HistoryTables
from chasquimq.spark.pipeline.channels import HISTORY, SETTLE_MS, Channels
from chasquimq.spark.pipeline.sampler import ServerSampler
from chasquimq.spark.pipeline.settings import BatchReport, PipelineRun, PipelineSettings
from chasquimq.spark.pipeline.streaming import ChannelQuery
from chasquimq.store.inspect.ranges import RangeStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = get_logger(__name__)
_SAMPLE_TAG = "sample"
_LOOK_AGAIN_S = 0.5
_AUDIT_EVERY_S = 30.0
# One part of auditing to so many parts of other work.
_AUDIT_SHARE = 20


class Workplace:
    """Opened by one pipeline at a time; closes what it opened."""

    def __init__(
        self,
        session: SparkSession,
        lake: Lake,
        settings: PipelineSettings,
        on_batch: OnBatch | None,
    ) -> None:
        self.settings = settings
        self._session = session
        self._lake = lake
        self._on_batch = on_batch
        self._sampler = ServerSampler(settings.connection)
        self._store = RangeStore(settings.connection, name="chasqui-pipeline")
        self._channels = Channels(lake.path, settings, self._store)
        self._backlog = Backlog(lake, settings.slo)
        # One batch at a time, whatever channel it is of: they write to the same tables.
        self._turn = threading.Lock()
        self._batches: list[Batches] = []
        self._began_s = time.monotonic()
        self._flushed_s = 0.0
        self._tidying = Tidying(lake, settings.compact_every)
        self._audit_due_s = time.monotonic() + _AUDIT_EVERY_S
        self._done = PipelineRun()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A batch outlives the thread that waited for it, and the lake is held no longer than this.
        self.close_batches()
        self._sampler.close()
        self._store.close()

    def channels(self) -> dict[str, str]:
        """Where each queue is read from, as far as that can be said."""
        return self._channels.decide()

    def channels_soon(self) -> dict[str, str]:
        """The same, with patience for queues that only just came to be."""
        give_up_s = time.monotonic() + SETTLE_MS / 1_000
        while not (channels := self.channels()) and time.monotonic() < give_up_s:
            time.sleep(_LOOK_AGAIN_S)
        return channels

    def query(self, channel: str) -> ChannelQuery:
        """A query of the channel that goes on where the last one stopped."""
        checkpoint = Checkpoint(self._lake.path, channel)
        batches = Batches(
            self._tables(channel, checkpoint), self._lake, checkpoint.app_id, checkpoint.pending,
            self._backlog, self._turn, self._count,
        )  # fmt: skip
        self._batches.append(batches)
        return ChannelQuery(self._session, self._lake, self.settings, checkpoint, batches)

    def sample(self, queues: Iterable[str]) -> None:
        """Ask the server how much waits where."""
        self._backlog.add(self._sampler.sample(list(queues)))

    def flush(self) -> None:
        """Commit samples that no batch has taken along."""
        with self._turn:
            for name, rows in self._backlog.rows().items():
                files = write_table(self._lake.path, name, rows, _SAMPLE_TAG)
                self._lake.commit(Change(table=name, adds=files))
                self._tidying.note_commit()
            self._flushed_s = time.monotonic()

    @property
    def idle_s(self) -> float:
        """How long no samples were committed."""
        return time.monotonic() - self._flushed_s

    def tidy(self) -> None:
        """Compact the tables, and delete what was replaced long ago."""
        with self._turn:
            self._tidying.tidy()

    def tidy_if_due(self) -> None:
        """The same, if there was enough to do since the last time."""
        if self._tidying.is_due:
            self.tidy()

    def audit(self, channels: Mapping[str, str]) -> None:
        """Hold the rows of the last days against the server's counters."""
        began_s = time.monotonic()
        with self._turn:
            standing = ask_standing(self._lake.path, channels, self._sampler, self._store)
            audit(self._lake, channels, standing)
        took_s = time.monotonic() - began_s
        self._audit_due_s = time.monotonic() + max(_AUDIT_EVERY_S, took_s * _AUDIT_SHARE)

    def last_audit(self, channels: Mapping[str, str]) -> None:
        """The same at the end of a run, which does not fail because its server is away."""
        try:
            self.audit(channels)
        except StoreError as error:
            logger.warning(
                "the server does not answer, the last audit is left out",
                extra={"error": str(error)},
            )

    def audit_if_due(self, channels: Mapping[str, str]) -> None:
        """Audit now and then: the longer it takes, the seldomer."""
        if time.monotonic() >= self._audit_due_s:
            self.audit(channels)

    def backfill(self, day: date) -> PipelineRun:
        """Remake a day from bronze."""
        checkpoint = Checkpoint(self._lake.path, "backfill")
        with self._turn:
            rows = Backfill(self._session, self._lake, self.settings, checkpoint, day).run()
        return replace(self.summary({}), rows=rows, batches=1)

    def close_batches(self) -> None:
        """Let the batch under way end, and begin no other."""
        while self._batches:
            self._batches.pop().close()

    def summary(self, channels: Mapping[str, str]) -> PipelineRun:
        seconds = time.monotonic() - self._began_s
        return replace(self._done, seconds=seconds, channels=dict(channels))

    def _tables(self, channel: str, checkpoint: Checkpoint) -> ChannelTables:
        if channel == HISTORY:
            return HistoryTables(self._session, self._lake, self.settings)
        return EventsTables(self._session, self._lake, self.settings, checkpoint.staging)

    def _count(self, report: BatchReport) -> None:
        done = self._done
        self._done = replace(
            done,
            batches=done.batches + 1,
            rows=done.rows + report.rows,
            lost=done.lost + report.lost,
        )
        self._tidying.note_commit()
        self._flushed_s = time.monotonic()
        if self._on_batch is not None:
            self._on_batch(report)
