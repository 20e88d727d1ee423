"""What a batch of the history becomes: silver is landed with bronze, gold follows from it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from chasquimq.spark.lake.lake import Change, Lake, Once
from chasquimq.spark.lake.ledger import sequence_gaps
from chasquimq.spark.lake.tables import BRONZE_ATTEMPTS, BRONZE_GAPS, BRONZE_RUNS
from chasquimq.spark.pipeline.batches import changes_of
from chasquimq.spark.pipeline.channels import HISTORY
from chasquimq.spark.pipeline.frames import landed_frame
from chasquimq.spark.pipeline.gold_batch import gold_rows
from chasquimq.spark.pipeline.tables.bronze import bronze_gaps, bronze_runs
from chasquimq.spark.pipeline.writers import Landed

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from chasquimq.spark.lake.ledger import RunPart
    from chasquimq.spark.pipeline.settings import PipelineSettings


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
