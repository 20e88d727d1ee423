"""Writes what tasks decoded or worked out, table by table, and gathers the facts about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.lake_files import FileFacts, TableWriter
from chasquimq.spark.ledger import Gap, Ledger, RunPart, event_gaps, id_ms
from chasquimq.spark.table_schemas import (
    BRONZE_ATTEMPTS,
    BRONZE_EVENTS,
    FOLDED_ATTEMPTS,
    SILVER_ATTEMPTS,
    SILVER_JOBS,
    SILVER_JOBS_PARTS,
    SILVER_OPEN,
)
from chasquimq.spark.tables_bronze import bronze_attempts, bronze_events
from chasquimq.spark.tables_silver import active_parts, silver_rows, waiting_parts

FACTS_DDL: Final = "body binary"
_FACTS: Final = pa.schema([("body", pa.binary())])


class Landed(msgspec.Struct, kw_only=True):
    """What tasks wrote and saw; `newest_ms` is the server's time of the last entry."""

    files: list[FileFacts] = []
    runs: list[RunPart] = []
    gaps: list[Gap] = []
    row_count: int = 0
    newest_ms: int | None = None

    def add(self, other: Landed) -> None:
        self.files += other.files
        self.runs += other.runs
        self.gaps += other.gaps
        self.row_count += other.row_count
        self.newest_ms = max(self.newest_ms or 0, other.newest_ms or 0) or None

    def files_of(self, table: str) -> list[FileFacts]:
        return [one for one in self.files if one.table == table]

    def fact(self) -> pa.RecordBatch:
        """The one row in which a task tells all this."""
        return pa.RecordBatch.from_pydict({"body": [msgspec.msgpack.encode(self)]}, _FACTS)


def read_landed(facts: pa.Table) -> Landed:
    """The facts of all tasks together."""
    landed = Landed()
    for body in facts.column("body").to_pylist():
        landed.add(msgspec.msgpack.decode(body, type=Landed))
    return landed


def land_history(batches: Iterable[pa.RecordBatch], lake: Path, tag: str, batch_id: int) -> Landed:
    """Write attempts to bronze and silver."""
    bronze = TableWriter(lake, BRONZE_ATTEMPTS, tag)
    silver = SilverWriter(lake, tag)
    ledger, landed = Ledger(), Landed()
    for batch in batches:
        ledger.see(batch)
        attempts = bronze_attempts(batch, batch_id, time.time_ns() // 1_000)
        bronze.add(attempts)
        silver.add(attempts)
        landed.add(_seen(attempts))
    landed.add(Landed(files=bronze.close() + silver.close(), runs=ledger.parts, gaps=ledger.gaps))
    return landed


def land_events(batches: Iterable[pa.RecordBatch], lake: Path, tag: str, batch_id: int) -> Landed:
    """Write events to bronze; what they tell about attempts may be in many batches."""
    bronze = TableWriter(lake, BRONZE_EVENTS, tag)
    parts = TableWriter(lake, SILVER_JOBS_PARTS, tag)
    landed = Landed()
    for batch in batches:
        events = bronze_events(batch, batch_id, time.time_ns() // 1_000)
        bronze.add(events)
        parts.add(waiting_parts(events))
        landed.add(_seen(events))
        landed.gaps += event_gaps(batch)
    landed.files += bronze.close() + parts.close()
    return landed


class FoldedLander:
    """Writes folded events, as `mapInArrow` hands them over: ended to silver, the rest as open.

    The attempts themselves go to `staging`, from where gold is worked out. Starts of the batch that
    are open say that their jobs run; `batch_id` None: those of any batch.
    """

    def __init__(self, lake: Path, staging: Path, tag: str, batch_id: int | None) -> None:
        self._lake = lake
        self._staging = staging
        self._tag = tag
        self._batch_id = batch_id

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staged = TableWriter(self._staging, FOLDED_ATTEMPTS, self._tag)
        silver = SilverWriter(self._lake, self._tag)
        opened = TableWriter(self._lake, SILVER_OPEN, self._tag)
        for batch in batches:
            attempts = batch.filter(pc.is_valid(batch.column("outcome")))
            staged.add(attempts)
            silver.add(attempts)
            still_open = _unpacked(batch.column("opened"))
            opened.add(still_open)
            silver.add_parts(active_parts(still_open, self._batch_id))
        yield Landed(files=staged.close() + silver.close() + opened.close()).fact()


class SilverLander:
    """Writes attempts of bronze to silver once more, as `mapInArrow` hands them over."""

    def __init__(self, lake: Path, tag: str) -> None:
        self._lake = lake
        self._tag = tag

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        silver = SilverWriter(self._lake, self._tag)
        row_count = 0
        for batch in batches:
            silver.add(batch)
            row_count += batch.num_rows
        yield Landed(files=silver.close(), row_count=row_count).fact()


class WaitingLander:
    """Writes what events of bronze know about jobs that wait once more."""

    def __init__(self, lake: Path, tag: str) -> None:
        self._lake = lake
        self._tag = tag

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = TableWriter(self._lake, SILVER_JOBS_PARTS, self._tag)
        row_count = 0
        for batch in batches:
            parts.add(waiting_parts(batch))
            row_count += batch.num_rows
        yield Landed(files=parts.close(), row_count=row_count).fact()


class SilverWriter:
    """Writes what attempts make of the silver tables."""

    def __init__(self, lake: Path, tag: str) -> None:
        self._attempts = TableWriter(lake, SILVER_ATTEMPTS, tag)
        self._jobs = TableWriter(lake, SILVER_JOBS, tag)
        self._parts = TableWriter(lake, SILVER_JOBS_PARTS, tag)

    def add(self, attempts: pa.RecordBatch) -> None:
        rows = silver_rows(attempts)
        self._attempts.add(rows.attempts)
        self._jobs.add(rows.jobs)
        self._parts.add(rows.parts)

    def add_parts(self, parts: pa.RecordBatch) -> None:
        self._parts.add(parts)

    def close(self) -> list[FileFacts]:
        return self._attempts.close() + self._jobs.close() + self._parts.close()


def _seen(rows: pa.RecordBatch) -> Landed:
    if not rows.num_rows:
        return Landed()
    last_id = rows.column("stream_id")[-1].as_py()
    return Landed(row_count=rows.num_rows, newest_ms=id_ms(last_id))


def _unpacked(structs: pa.StructArray) -> pa.RecordBatch:
    known = structs.filter(pc.is_valid(structs))
    return pa.RecordBatch.from_arrays(known.flatten(), schema=SILVER_OPEN.arrow)
