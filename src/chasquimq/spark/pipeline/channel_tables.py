"""Makes the changes of a batch of a channel: bronze and silver as written, gold computed."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.lake.files import FileFacts, TableWriter, one_batch, read_files
from chasquimq.spark.lake.lake import Change, Lake, Once
from chasquimq.spark.lake.ledger import sequence_gaps
from chasquimq.spark.lake.tables import (
    BRONZE_ATTEMPTS,
    BRONZE_EVENTS,
    BRONZE_GAPS,
    BRONZE_RUNS,
    FOLDED_ATTEMPTS,
    LOOSE_EVENTS,
    SILVER_OPEN,
    TABLES,
)
from chasquimq.spark.pipeline.batches import changes_of
from chasquimq.spark.pipeline.channels import EVENTS, HISTORY
from chasquimq.spark.pipeline.tables.bronze import bronze_gaps, bronze_runs
from chasquimq.spark.pipeline.tables.events import fold_events
from chasquimq.spark.pipeline.tables.gold import gold_failures, gold_minute, gold_retries, gold_slo
from chasquimq.spark.pipeline.tables.silver import active_parts
from chasquimq.spark.pipeline.writers import Landed, SilverWriter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from chasquimq.spark.lake.files import FileFacts
    from chasquimq.spark.lake.lake import Lake
    from chasquimq.spark.lake.ledger import RunPart
    from chasquimq.spark.lake.table_shape import Table
    from chasquimq.spark.pipeline.settings import PipelineSettings

# An end that did not come within days was lost, and the audit counts it.
OPEN_DAYS_MAX: Final = 7
_OPEN_MS_MAX: Final = OPEN_DAYS_MAX * 24 * 3_600_000


class HistoryTables:
    """Tables of the history channel; remembers how far each worker run was read."""

    channel = HISTORY
    bronze = BRONZE_ATTEMPTS.name

    def __init__(self, session: SparkSession, lake: Lake, settings: PipelineSettings) -> None:
        self._session = session
        self._lake = lake
        self._settings = settings
        self._known: dict[tuple[str, str], tuple[int, str]] | None = None

    def changes(self, landed: Landed, once: Once) -> list[Change]:
        if self._known is None:
            self._known = _known_runs(self._lake)
        landed.gaps += sequence_gaps(landed.runs, self._known)
        self._remember(landed.runs)
        now = datetime.now(UTC)
        rows: dict[str, pa.Table] = {
            BRONZE_GAPS.name: bronze_gaps(landed.gaps, HISTORY, once.version, now),
            BRONZE_RUNS.name: bronze_runs(landed.runs, once.version, now),
        }
        if landed.row_count:
            files = landed.files_of(BRONZE_ATTEMPTS.name)
            attempts = landed_frame(self._session, self._lake.path, BRONZE_ATTEMPTS, files)
            rows |= gold_rows(attempts, self._settings)
        return changes_of(self._lake, once, landed.files, rows, always=[self.bronze])

    def _remember(self, parts: Iterable[RunPart]) -> None:
        known = self._known or {}
        for part in parts:
            key = (part.queue, part.run)
            known[key] = max(known.get(key, (0, "")), (part.last_seq, part.last_id))
        self._known = known


def _known_runs(lake: Lake) -> dict[tuple[str, str], tuple[int, str]]:
    known: dict[tuple[str, str], tuple[int, str]] = {}
    columns = ["queue", "run", "last_seq", "last_at"]
    for row in lake.rows(BRONZE_RUNS.name, columns).to_pylist():
        key, place = (row["queue"], row["run"]), f"{int(row['last_at'].timestamp() * 1_000)}-0"
        known[key] = max(known.get(key, (0, "")), (row["last_seq"], place))
    return known


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


def gold_rows(attempts: DataFrame, settings: PipelineSettings) -> dict[str, pa.Table]:
    """What these attempts add to each gold table."""
    frames: dict[str, DataFrame] = {
        "gold_minute": gold_minute(attempts),
        "gold_failures": gold_failures(attempts),
        "gold_retries": gold_retries(attempts),
    }
    if settings.slo:
        frames["gold_slo"] = gold_slo(attempts, settings.slo, settings.slo_allowed_share)
    # A small batch spends its time on planning, and that can be done four times at once.
    with ThreadPoolExecutor(len(frames)) as pool:
        return dict(zip(frames, pool.map(_collected, frames.values()), strict=True))


def _collected(frame: DataFrame) -> pa.Table:
    return frame.toArrow()


def lake_frame(session: SparkSession, lake: Lake, name: str, day: str | None = None) -> DataFrame:
    """The rows of a table, or those of one day."""
    return _frame(session, lake.path / name, TABLES[name], map(str, lake.files(name, day)))


def landed_frame(
    session: SparkSession, folder: Path, table: Table, files: Iterable[FileFacts]
) -> DataFrame:
    """The rows of files that were only just written; `folder` is where the table lies."""
    base = folder / table.name
    return _frame(session, base, table, [f"{base}/{one.path}" for one in files])


def _frame(session: SparkSession, base: Path, table: Table, paths: Iterable[str]) -> DataFrame:
    every = list(paths)
    if not every:
        return session.createDataFrame([], table.ddl)
    # The day is in the name of a file's folder; columns that a file has not are empty.
    return session.read.schema(table.ddl).option("basePath", str(base)).parquet(*every)
