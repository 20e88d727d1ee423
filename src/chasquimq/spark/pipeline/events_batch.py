"""What a batch of events becomes: tasks fold what they can, the rest is folded here with what was open."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.lake.files import FileFacts, TableWriter, one_batch, read_files
from chasquimq.spark.lake.lake import Change, Lake, Once
from chasquimq.spark.lake.tables import (
    BRONZE_EVENTS,
    BRONZE_GAPS,
    FOLDED_ATTEMPTS,
    LOOSE_EVENTS,
    SILVER_OPEN,
    TABLES,
)
from chasquimq.spark.pipeline.batches import changes_of
from chasquimq.spark.pipeline.channels import EVENTS
from chasquimq.spark.pipeline.frames import landed_frame
from chasquimq.spark.pipeline.gold_batch import gold_rows
from chasquimq.spark.pipeline.tables.bronze import bronze_gaps
from chasquimq.spark.pipeline.tables.events import fold_events
from chasquimq.spark.pipeline.tables.silver import active_parts
from chasquimq.spark.pipeline.writers import Landed, SilverWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chasquimq.spark.pipeline.settings import PipelineSettings

# An end that did not come within days was lost, and the audit counts it.
OPEN_DAYS_MAX: Final = 7
_OPEN_MS_MAX: Final = OPEN_DAYS_MAX * 24 * 3_600_000


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
        tag = f"{once.app_id}-{once.version}"
        folded = fold_events(self._rest(landed), is_all=True)
        files = [*landed.files, *self._land(folded.attempts, folded.opened, once.version, tag)]
        rows: dict[str, pa.Table] = {
            BRONZE_GAPS.name: bronze_gaps(landed.gaps, EVENTS, once.version, datetime.now(UTC)),
            SILVER_OPEN.name: pa.Table.from_batches(
                [still_hoped_for(folded.opened, landed.newest_ms)]
            ),
            **self._gold([one for one in files if one.table == FOLDED_ATTEMPTS.name]),
        }
        shutil.rmtree(self._staging, ignore_errors=True)
        kept = [one for one in files if one.table in TABLES]
        always = [self.bronze, SILVER_OPEN.name]
        changes = changes_of(self._lake, once, kept, rows, always=always)
        return [self._closing(change) for change in changes]

    def _rest(self, landed: Landed) -> pa.RecordBatch:
        """What tasks could not fold, and what was open before, as one batch."""
        before = self._lake.rows(SILVER_OPEN.name, SILVER_OPEN.names).cast(SILVER_OPEN.arrow)
        loose = read_files(self._staging, LOOSE_EVENTS, landed.files_of(LOOSE_EVENTS.name))
        return one_batch(pa.concat_tables([before, loose]))

    def _land(
        self, attempts: pa.RecordBatch, opened: pa.RecordBatch, batch_id: int, tag: str
    ) -> list[FileFacts]:
        silver = SilverWriter(self._lake.path, tag)
        silver.add(attempts)
        silver.add_parts(active_parts(opened, batch_id))
        staged = TableWriter(self._staging, FOLDED_ATTEMPTS, tag)
        staged.add(attempts)
        return silver.close() + staged.close()

    def _gold(self, staged: list[FileFacts]) -> dict[str, pa.Table]:
        if not staged:
            return {}
        attempts = landed_frame(self._session, self._staging, FOLDED_ATTEMPTS, staged)
        return gold_rows(attempts, self._settings)

    def _closing(self, change: Change) -> Change:
        """What was open before is in this batch again, closed or not."""
        if change.table != SILVER_OPEN.name:
            return change
        before = self._lake.relative(SILVER_OPEN.name, self._lake.files(SILVER_OPEN.name))
        return Change(table=change.table, adds=change.adds, removes=before)


def still_hoped_for(opened: pa.RecordBatch, newest_ms: int | None) -> pa.RecordBatch:
    """What is open, without what the newest event of the batch has left behind for too long."""
    # An id of another clock than the server's must not make all else look old.
    ahead_ms = time.time_ns() // 1_000_000 + _OPEN_MS_MAX // OPEN_DAYS_MAX
    newest_ms = min(newest_ms or 0, ahead_ms)
    return opened.filter(pc.greater(opened.column("id_ms"), newest_ms - _OPEN_MS_MAX))
