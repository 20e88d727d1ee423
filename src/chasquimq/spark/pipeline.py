"""Carries history and events into the tables of a lake, batch after batch, each exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING

from chasquimq.errors import NotSupportedError
from chasquimq.spark.pipeline_settings import BatchReport, PipelineRun, PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnBatch = Callable[[BatchReport], None]


class Pipeline:
    """One pipeline into one lake; a second one on the same lake is refused."""

    def __init__(self, session: SparkSession, settings: PipelineSettings) -> None:
        self._session = session
        self._settings = settings

    def once(self, on_batch: OnBatch | None = None) -> PipelineRun:
        """Read what is there, compact, and stop."""
        raise NotSupportedError("the pipeline cannot run yet")

    def run(self, stop: threading.Event, on_batch: OnBatch | None = None) -> PipelineRun:
        """Read until told to stop; a batch that was begun is finished."""
        raise NotSupportedError("the pipeline cannot run yet")

    def backfill(self, day: date) -> PipelineRun:
        """Make the silver and gold rows of a day again, from bronze."""
        raise NotSupportedError("the pipeline cannot run yet")
