"""Makes the silver and gold rows of a day again, from bronze: the same rows, whatever they were."""

from __future__ import annotations

import shutil
import time
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  its usual name

from chasquimq.spark.batches import changes_of
from chasquimq.spark.frames import lake_frame, landed_frame
from chasquimq.spark.gold import gold_rows
from chasquimq.spark.lake import Change, Lake, Once
from chasquimq.spark.land import (
    FACTS_DDL,
    FoldedLander,
    Landed,
    SilverLander,
    WaitingLander,
    read_landed,
)
from chasquimq.spark.manifest import Manifest
from chasquimq.spark.table_schemas import (
    BRONZE_ATTEMPTS,
    BRONZE_EVENTS,
    FOLDED_ATTEMPTS,
    SILVER_OPEN,
)
from chasquimq.spark.tables_events import fold, rejected_entries

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from chasquimq.spark.checkpoints import Checkpoint
    from chasquimq.spark.pipeline_settings import PipelineSettings

_APP_ID: Final = "chasqui-backfill"
_REMADE: Final = (
    "silver_attempts", "silver_jobs", "silver_jobs_parts", "gold_minute", "gold_failures",
    "gold_slo", "gold_retries",
)  # fmt: skip


class Backfill:
    """Remakes one day; its rows are exchanged in each table at one moment."""

    def __init__(
        self,
        session: SparkSession,
        lake: Lake,
        settings: PipelineSettings,
        checkpoint: Checkpoint,
        day: date,
    ) -> None:
        self._session = session
        self._lake = lake
        self._settings = settings
        self._checkpoint = checkpoint
        self._day = day
        self._once = Once(_APP_ID, time.time_ns() // 1_000)
        self._tag = f"{_APP_ID}-{self._once.version}"

    def run(self) -> int:
        """Remake the day; the answer is how many attempts and events it was made of."""
        day = self._day.isoformat()
        history, gold = self._history(day)
        events, more_gold = self._events(day)
        files = [*history.files, *events.files]
        changes = changes_of(self._lake, self._once, files, gold, always=_REMADE)
        changes += changes_of(self._lake, self._once, (), more_gold)
        joined = [self._exchanging(name, changes, day) for name in _REMADE]
        self._checkpoint.pending.write(Manifest(once=self._once, changes=joined))
        self._checkpoint.pending.settle(self._lake)
        return history.row_count + events.row_count

    def _history(self, day: str) -> tuple[Landed, dict[str, pa.Table]]:
        if not self._lake.files(BRONZE_ATTEMPTS.name, day):
            return Landed(), {}
        attempts = lake_frame(self._session, self._lake, BRONZE_ATTEMPTS.name, day)
        landed = _landed(attempts, SilverLander(self._lake.path, self._tag))
        return landed, gold_rows(attempts, self._settings)

    def _events(self, day: str) -> tuple[Landed, dict[str, pa.Table]]:
        if not self._lake.files(BRONZE_EVENTS.name, day):
            return Landed(), {}
        # What began the day before and ended on this one belongs to this one.
        before = (self._day - timedelta(days=1)).isoformat()
        earlier = lake_frame(self._session, self._lake, BRONZE_EVENTS.name, before)
        events = lake_frame(self._session, self._lake, BRONZE_EVENTS.name, day)
        landed = _landed(events, WaitingLander(self._lake.path, self._tag))
        folded = self._folded(events, earlier)
        staged = folded.files_of(FOLDED_ATTEMPTS.name)
        thrown_away = {FOLDED_ATTEMPTS.name, SILVER_OPEN.name}
        landed.files += [one for one in folded.files if one.table not in thrown_away]
        if not staged:
            return landed, {}
        attempts = landed_frame(self._session, self._checkpoint.staging, FOLDED_ATTEMPTS, staged)
        return landed, gold_rows(attempts, self._settings)

    def _folded(self, events: DataFrame, earlier: DataFrame) -> Landed:
        shutil.rmtree(self._checkpoint.staging, ignore_errors=True)
        of_day = fold(events.unionByName(earlier)).where(F.col("event_date") == F.lit(self._day))
        rows = of_day.unionByName(rejected_entries(events), allowMissingColumns=True)
        lander = FoldedLander(self._lake.path, self._checkpoint.staging, self._tag, None)
        return _landed(rows, lander)

    def _exchanging(self, name: str, changes: list[Change], day: str) -> Change:
        adds = [one for change in changes if change.table == name for one in change.adds]
        removes = self._lake.relative(name, self._lake.files(name, day))
        return Change(table=name, adds=adds, removes=removes)


def _landed(frame: DataFrame, lander: SilverLander | WaitingLander | FoldedLander) -> Landed:
    return read_landed(frame.mapInArrow(lander, FACTS_DDL).toArrow())
