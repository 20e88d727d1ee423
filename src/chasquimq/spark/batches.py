"""One batch from what tasks landed to what is committed: every table of it, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from chasquimq.spark.lake import Change, Lake, Once
from chasquimq.spark.lake_files import FileFacts, write_table
from chasquimq.spark.land import Landed, read_landed
from chasquimq.spark.ledger import lost_total
from chasquimq.spark.manifest import Manifest, ManifestFile
from chasquimq.spark.pipeline_settings import BatchReport

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

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
        on_batch: OnBatch,
    ) -> None:
        self._tables = tables
        self._lake = lake
        self._app_id = app_id
        self._pending = pending
        self._on_batch = on_batch

    def __call__(self, facts: DataFrame, batch_id: int) -> None:
        began_s = time.monotonic()
        once = Once(self._app_id, batch_id)
        self._pending.settle(self._lake)
        # A batch leaves no manifest behind only when all its tables have it.
        if self._lake.is_done(self._tables.bronze, once):
            return
        # The one time that the facts are looked at: a second look would land all of it again.
        landed = read_landed(facts.toArrow())
        self._pending.write(Manifest(once=once, changes=self._tables.changes(landed, once)))
        self._pending.settle(self._lake)
        self._on_batch(_report(self._tables.channel, batch_id, landed, began_s))


def changes_of(
    lake: Lake, once: Once, files: Iterable[FileFacts], rows: Mapping[str, pa.Table], *, first: str
) -> list[Change]:
    """A change for each table; small tables are written here. The first is made even if empty."""
    tag = f"{once.app_id}-{once.version}"
    every = list(files)
    for name, table in rows.items():
        every += write_table(lake.path, name, table, tag)
    names = dict.fromkeys([first, *(one.table for one in every)])
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
