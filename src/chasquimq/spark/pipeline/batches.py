"""One batch from what tasks landed to what is committed: every table of it, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from chasquimq.spark.lake.files import FileFacts, write_table
from chasquimq.spark.lake.lake import Change, Lake, Once
from chasquimq.spark.lake.ledger import lost_total
from chasquimq.spark.lake.manifest import Manifest, ManifestFile
from chasquimq.spark.pipeline.settings import BatchReport
from chasquimq.spark.pipeline.writers import Landed, read_landed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from chasquimq.spark.pipeline.backlog import Backlog

OnBatch = Callable[[BatchReport], None]


class ChannelTables(Protocol):
    """What a channel makes of what its tasks landed."""

    channel: str
    # The table that every batch changes, if only to say that it was there.
    bronze: str

    def changes(self, landed: Landed, once: Once) -> list[Change]:
        """Write what is missing; all files of the batch, by table."""
        ...


class Batches:
    """What `foreachBatch` calls: it may call twice for a batch, and once is all that happens."""

    def __init__(
        self,
        tables: ChannelTables,
        lake: Lake,
        app_id: str,
        pending: ManifestFile,
        backlog: Backlog,
        turn: threading.Lock,
        on_batch: OnBatch,
    ) -> None:
        self._tables = tables
        self._lake = lake
        self._app_id = app_id
        self._pending = pending
        self._backlog = backlog
        self._turn = turn
        self._on_batch = on_batch
        self._is_closed = False
        # What a batch died of, as it was raised: Spark only gives it as text.
        self.error: Exception | None = None

    @property
    def channel(self) -> str:
        return self._tables.channel

    def __call__(self, facts: DataFrame, batch_id: int) -> None:
        with self._turn:
            # To return would be to say that the batch is done.
            assert not self._is_closed, "no batch is begun once the pipeline is to stop"
            try:
                self._pass(facts, batch_id)
            except Exception as error:
                self.error = error
                raise

    def close(self) -> None:
        """Let the batch that is under way end, and begin no other."""
        with self._turn:
            self._is_closed = True

    def _pass(self, facts: DataFrame, batch_id: int) -> None:
        began_s = time.monotonic()
        once = Once(self._app_id, batch_id)
        self._pending.settle(self._lake)
        # A batch leaves no manifest behind only when all its tables have it.
        if self._lake.is_done(self._tables.bronze, once):
            return
        # The one time that the facts are looked at: a second look would land all of it again.
        landed = read_landed(facts.toArrow())
        changes = self._tables.changes(landed, once)
        changes += changes_of(self._lake, once, (), self._backlog.rows())
        self._pending.write(Manifest(once=once, changes=changes))
        self._pending.settle(self._lake)
        self._on_batch(_report(self._tables.channel, batch_id, landed, began_s))


def changes_of(
    lake: Lake,
    once: Once,
    files: Iterable[FileFacts],
    rows: Mapping[str, pa.Table],
    *,
    always: Sequence[str] = (),
) -> list[Change]:
    """A change for each table that gets anything, and for those that always change.

    Small tables are written here.
    """
    tag = f"{once.app_id}-{once.version}"
    every = list(files)
    for name, table in rows.items():
        every += write_table(lake.path, name, table, tag)
    names = dict.fromkeys([*always, *(one.table for one in every)])
    return [Change(table=name, adds=[one for one in every if one.table == name]) for name in names]


def _report(channel: str, batch_id: int, landed: Landed, began_s: float) -> BatchReport:
    now_ms = time.time_ns() // 1_000_000
    return BatchReport(
        channel=channel,
        batch_id=batch_id,
        rows=landed.row_count,
        lost=lost_total(landed.gaps),
        seconds=time.monotonic() - began_s,
        lag_ms=None if landed.newest_ms is None else max(0, now_ms - landed.newest_ms),
    )
