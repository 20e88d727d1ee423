"""Makes the silver and gold rows of a day again, from bronze: the same rows, whatever they were."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  its usual name

from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.lake.manifest import Manifest
from chasquimq.spark.lake.tables import BRONZE_ATTEMPTS, BRONZE_EVENTS, FOLDED_ATTEMPTS, GOLD_SLO
from chasquimq.spark.pipeline.batches import changes_of
from chasquimq.spark.pipeline.channel_tables import (
    OPEN_DAYS_MAX,
    gold_rows,
    lake_frame,
    landed_frame,
)
from chasquimq.spark.pipeline.tables.gold import ANY_NAME
from chasquimq.spark.pipeline.writers import FACTS_DDL, DayLander, Landed, SilverLander, read_landed
from chasquimq.wire.keys import JOB_NAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from chasquimq.spark.lake.checkpoints import Checkpoint
    from chasquimq.spark.pipeline.settings import PipelineSettings

_APP_ID: Final = "chasqui-backfill"
_EVENTS_PER_PORTION: Final = 250_000
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
        self._settings = replace(settings, slo=_targets_of(lake, day, settings.slo))
        self._checkpoint = checkpoint
        self._day = day
        self._once = lake.next_once(_APP_ID, _REMADE)
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
        shutil.rmtree(self._checkpoint.staging, ignore_errors=True)
        return history.row_count + events.row_count

    def _history(self, day: str) -> tuple[Landed, dict[str, pa.Table]]:
        if not self._lake.files(BRONZE_ATTEMPTS.name, day):
            return Landed(), {}
        attempts = lake_frame(self._session, self._lake, BRONZE_ATTEMPTS.name, day)
        lander = SilverLander(self._lake.path, self._tag)
        landed = read_landed(attempts.mapInArrow(lander, FACTS_DDL).toArrow())
        return landed, gold_rows(attempts, self._settings)

    def _events(self, day: str) -> tuple[Landed, dict[str, pa.Table]]:
        if not self._lake.files(BRONZE_EVENTS.name, day):
            return Landed(), {}
        events = lake_frame(self._session, self._lake, BRONZE_EVENTS.name, day)
        landed = self._folded(self._with_earlier(events))
        staged = landed.files_of(FOLDED_ATTEMPTS.name)
        landed.files = [one for one in landed.files if one not in staged]
        if not staged:
            return landed, {}
        attempts = landed_frame(self._session, self._checkpoint.staging, FOLDED_ATTEMPTS, staged)
        return landed, gold_rows(attempts, self._settings)

    def _with_earlier(self, events: DataFrame) -> DataFrame:
        """Also what was reported of the same jobs before: an attempt may have begun days ago."""
        jobs = events.select("queue", "job_id").distinct()
        for back in range(1, OPEN_DAYS_MAX + 1):
            before = (self._day - timedelta(days=back)).isoformat()
            if self._lake.files(BRONZE_EVENTS.name, before):
                earlier = lake_frame(self._session, self._lake, BRONZE_EVENTS.name, before)
                same = earlier.join(jobs, ["queue", "job_id"], "left_semi")
                events = events.unionByName(same)
        return events

    def _folded(self, events: DataFrame) -> Landed:
        """Jobs are folded in portions that a task can hold, all events of a job together."""
        shutil.rmtree(self._checkpoint.staging, ignore_errors=True)
        portions = max(1, events.count() // _EVENTS_PER_PORTION)
        portion = F.pmod(F.xxhash64("queue", "job_id"), F.lit(portions)).alias("portion")
        lander = DayLander(self._lake.path, self._checkpoint.staging, self._tag, self._day)

        # Spark counts the arguments, and would take the method's own for a key.
        def land(jobs: pa.Table) -> pa.Table:
            return lander(jobs)

        return read_landed(events.groupBy(portion).applyInArrow(land, FACTS_DDL).toArrow())

    def _exchanging(self, name: str, changes: list[Change], day: str) -> Change:
        adds = [one for change in changes if change.table == name for one in change.adds]
        removes = self._lake.relative(name, self._lake.files(name, day))
        return Change(table=name, adds=adds, removes=removes)


def _targets_of(lake: Lake, day: date, given: Mapping[str, int]) -> Mapping[str, int]:
    """Those that were given, and those that other names had on the day: the last of each."""
    if ANY_NAME in given:
        return given
    rows = lake.rows(GOLD_SLO.name, ["name", "target_ms", "window_start"], day.isoformat())
    had = {
        row["name"]: row["target_ms"]
        for row in rows.sort_by("window_start").to_pylist()
        if row["name"] is not None and len(row["name"].encode()) <= JOB_NAME_BYTES_MAX
    }
    return {**had, **given}
