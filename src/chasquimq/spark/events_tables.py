"""What a batch of events becomes: folded into attempts with what was open before, then as those."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chasquimq.spark.batches import changes_of
from chasquimq.spark.frames import lake_frame, landed_frame
from chasquimq.spark.gold import gold_rows
from chasquimq.spark.lake import Change, Lake, Once
from chasquimq.spark.land import FACTS_DDL, FoldedLander, Landed, read_landed
from chasquimq.spark.table_schemas import (
    BRONZE_EVENTS,
    BRONZE_GAPS,
    FOLDED_ATTEMPTS,
    SILVER_OPEN,
)
from chasquimq.spark.tables_bronze import bronze_gaps
from chasquimq.spark.tables_events import fold, rejected_entries

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from chasquimq.spark.pipeline_settings import PipelineSettings

EVENTS: Final = "events"


class EventsTables:
    """Tables of the events channel; `staging` holds folded attempts until gold is worked out."""

    channel = EVENTS
    bronze = BRONZE_EVENTS.name

    def __init__(
        self, session: SparkSession, lake: Lake, settings: PipelineSettings, staging: Path
    ) -> None:
        self._session = session
        self._lake = lake
        self._settings = settings
        self._staging = staging

    def changes(self, landed: Landed, once: Once) -> list[Change]:
        rows: dict[str, pa.Table] = {
            BRONZE_GAPS.name: bronze_gaps(landed.gaps, EVENTS, once.version, datetime.now(UTC))
        }
        if not landed.row_count:
            return changes_of(self._lake, once, landed.files, rows, always=[self.bronze])
        events = landed_frame(
            self._session, self._lake.path, BRONZE_EVENTS, landed.files_of(self.bronze)
        )
        folded = self._folded(events, once)
        attempts = folded.files_of(FOLDED_ATTEMPTS.name)
        if attempts:
            staged = landed_frame(self._session, self._staging, FOLDED_ATTEMPTS, attempts)
            rows |= gold_rows(staged, self._settings)
        files = [*landed.files, *(one for one in folded.files if one not in attempts)]
        always = [self.bronze, SILVER_OPEN.name]
        changes = changes_of(self._lake, once, files, rows, always=always)
        return [self._closing(change) for change in changes]

    def _folded(self, events: DataFrame, once: Once) -> Landed:
        shutil.rmtree(self._staging, ignore_errors=True)
        before = lake_frame(self._session, self._lake, SILVER_OPEN.name)
        land = FoldedLander(
            self._lake.path, self._staging, f"{once.app_id}-{once.version}", once.version
        )
        rows = fold(events.unionByName(before)).unionByName(
            rejected_entries(events), allowMissingColumns=True
        )
        return read_landed(rows.mapInArrow(land, FACTS_DDL).toArrow())

    def _closing(self, change: Change) -> Change:
        """What was open before is in this batch again, closed or not."""
        if change.table != SILVER_OPEN.name:
            return change
        before = self._lake.relative(SILVER_OPEN.name, self._lake.files(SILVER_OPEN.name))
        return Change(table=change.table, adds=change.adds, removes=before)
