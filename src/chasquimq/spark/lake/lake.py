"""A lake: one Delta table a folder; files are written first, then committed, each change once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from chasquimq.spark.lake.durable import sync
from chasquimq.spark.lake.files import FileFacts, unwritable
from chasquimq.spark.lake.reading import resolved, unreadable
from chasquimq.spark.lake.table_shape import PARTITION, Table
from chasquimq.spark.lake.tables import TABLES

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

# A batch a second is a file of the log a second; readers start from the last checkpoint.
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
VACUUM_AFTER_HOURS: Final = 24
# Numbers of changes begin with 0.
_NONE_YET: Final = -1


class Once(msgspec.Struct, frozen=True):
    """What makes a change happen once: who makes it, and its number, which only grows."""

    app_id: str
    version: int


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Files that join a table and files that leave it, at the same moment.

    `rows_change` is False where the same rows only move to other files.
    """

    table: str
    adds: Sequence[FileFacts] = ()
    removes: Sequence[str] = ()
    rows_change: bool = True


class Lake:
    """The tables of a folder; every method sees them as they are at that moment."""

    def __init__(self, path: Path) -> None:
        self.path = resolved(path)
        self._open: dict[str, DeltaTable] = {}

    def create_missing(self) -> None:
        """Make every table that is not there yet, and give the others the columns they lack.

        Raises:
            SettingsError: the folder cannot be written to.
        """
        from deltalake.exceptions import DeltaError

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for table in TABLES.values():
                self._create_or_widen(table)
        except DeltaError as error:
            raise unreadable(self.path, error) from error
        except OSError as error:
            raise unwritable(self.path) from error

    def table(self, name: str) -> DeltaTable | None:
        """The table as it is now; None where nothing was written yet."""
        from deltalake import DeltaTable

        if name in self._open:
            self._open[name].update_incremental()
        elif (self.path / name / "_delta_log").is_dir():
            self._open[name] = DeltaTable(self.path / name)
        return self._open.get(name)

    def files(self, name: str, day: str | None = None) -> list[Path]:
        """The files that hold the rows of a table now, or those of one day."""
        table = self.table(name)
        if table is None:
            return []
        filters = None if day is None else [(PARTITION, "=", day)]
        # Written as URLs are, so a space is %20.
        return sorted(Path(unquote(uri)) for uri in table.file_uris(file_pruning_predicate=filters))

    def days(self, name: str) -> list[str]:
        """The days that a table has rows of."""
        table = self.table(name)
        found = [] if table is None else table.partitions()
        return sorted({str(part[PARTITION]) for part in found})

    def rows(self, name: str, columns: Sequence[str], day: str | None = None) -> pa.Table:
        """Some columns of a small table, or of one day of it."""
        table: Any = self.table(name)
        if table is None:
            return pa.schema([TABLES[name].arrow.field(column) for column in columns]).empty_table()
        filters = None if day is None else [(PARTITION, "=", date.fromisoformat(day))]
        return table.to_pyarrow_table(columns=list(columns), filters=filters)

    def is_done(self, name: str, once: Once) -> bool:
        """Whether the change was committed before."""
        return self._last_version(name, once.app_id) >= once.version

    def next_once(self, app_id: str, tables: Iterable[str]) -> Once:
        """The next change of an app to these tables: a number of the clock, and above all before.

        A clock that stepped back would make it look done.
        """
        last = [self._last_version(name, app_id) for name in tables]
        return Once(app_id, max([time.time_ns() // 1_000, *(number + 1 for number in last)]))

    def commit(self, change: Change, once: Once | None = None) -> bool:
        """Make a change visible; False where it was before, and nothing happened now."""
        from deltalake import CommitProperties, Transaction

        if once is not None and self.is_done(change.table, once):
            return False
        table = self.table(change.table)
        assert table is not None, "tables are created before anything is committed to them"
        marks = [] if once is None else [Transaction(once.app_id, once.version)]
        table.create_write_transaction(
            [*_adds(change), *_removes(change)],
            mode="append",
            schema=table.schema(),
            partition_by=[PARTITION],
            commit_properties=CommitProperties(app_transactions=marks),
        )
        return True

    def sync(self, name: str) -> None:
        """Wait until the last change of a table is on disk."""
        table = self.table(name)
        if table is not None:
            log = self.path / name / "_delta_log"
            # What has been there for long may have been cleaned up, and is on disk.
            with suppress(FileNotFoundError):
                sync(log / f"{table.version():020}.json")
            sync(log)

    def relative(self, name: str, paths: Iterable[Path]) -> list[str]:
        """Paths of a table's files, as its log writes them."""
        folder = self.path / name
        return [str(path.relative_to(folder)) for path in paths]

    def vacuum(self, after_hours: int = VACUUM_AFTER_HOURS) -> list[str]:
        """Delete files that no table has had for so long: replaced, or of killed batches."""
        from chasquimq.spark.lake.checkpoints import pending_files

        # A batch that was decided on and not yet committed needs its files, however old they are.
        is_settled = not pending_files(self.path)
        return [
            f"{name}/{path}"
            for name in TABLES
            if (table := self.table(name)) is not None
            for path in table.vacuum(
                after_hours, dry_run=False, enforce_retention_duration=False, full=is_settled
            )
        ]

    def _last_version(self, name: str, app_id: str) -> int:
        table = self.table(name)
        done = None if table is None else table.transaction_version(app_id)
        return _NONE_YET if done is None else done

    def _create_or_widen(self, table: Table) -> None:
        found = self.table(table.name)
        if found is None:
            _create(self.path / table.name, table)
            return
        known = {field.name for field in found.schema().fields}
        if set(table.names) - known:
            _widen(found, table, known)


def _create(path: Path, table: Table) -> None:
    from deltalake import DeltaTable

    DeltaTable.create(
        path, table.arrow, mode="ignore", partition_by=[PARTITION], configuration=_CONFIGURATION
    )


def _widen(found: DeltaTable, table: Table, known: set[str]) -> None:
    """Rows that were written before have nothing in a new column."""
    from deltalake import Schema

    wanted = Schema.from_arrow(table.arrow).fields
    found.alter.add_columns([field for field in wanted if field.name not in known])


def _adds(change: Change) -> list[AddAction]:
    from deltalake.transaction import AddAction

    now_ms = time.time_ns() // 1_000_000
    return [
        AddAction(
            path=one.path,
            size=one.size_bytes,
            partition_values={PARTITION: one.day},
            modification_time=now_ms,
            data_change=change.rows_change,
            stats=one.stats,
        )
        for one in change.adds
    ]


def _removes(change: Change) -> list[RemoveAction]:
    from deltalake.transaction import RemoveAction

    now_ms = time.time_ns() // 1_000_000
    return [RemoveAction(path, change.rows_change, now_ms) for path in change.removes]
