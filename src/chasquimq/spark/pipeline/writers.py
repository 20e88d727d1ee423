"""Writes what tasks decoded or worked out, table by table, and gathers the facts about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.lake.files import FileFacts, TableWriter, one_batch
from chasquimq.spark.lake.ledger import Gap, Ledger, RunPart, event_gaps, id_ms
from chasquimq.spark.lake.tables import (
    BRONZE_ATTEMPTS,
    BRONZE_EVENTS,
    FOLDED_ATTEMPTS,
    LOOSE_EVENTS,
    SILVER_ATTEMPTS,
    SILVER_JOBS,
    SILVER_JOBS_PARTS,
    SILVER_OPEN,
)
from chasquimq.spark.pipeline.tables.bronze import bronze_attempts, bronze_events
from chasquimq.spark.pipeline.tables.events import fold_events, rejected_entries
from chasquimq.spark.pipeline.tables.silver import active_parts, silver_rows, waiting_parts

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
        """The one row in which a task reports all this."""
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


def land_events(
    batches: Iterable[pa.RecordBatch], lake: Path, staging: Path, tag: str, batch_id: int
) -> Landed:
    """Write events to bronze, and attempts that begin and end here to silver.

    What begins or ends elsewhere goes to `staging`, and a copy of the attempts for gold with it.
    """
    bronze = TableWriter(lake, BRONZE_EVENTS, tag)
    folding = EventFolding(lake, staging, tag)
    landed = Landed()
    for batch in batches:
        events = bronze_events(batch, batch_id, time.time_ns() // 1_000)
        bronze.add(events)
        folding.add(events)
        landed.add(_seen(events))
        landed.gaps += event_gaps(batch)
    landed.files += bronze.close() + folding.close()
    return landed


class EventFolding:
    """Folds the events of a task, batch by batch; what is open waits for the next batch."""

    def __init__(self, lake: Path, staging: Path, tag: str) -> None:
        self._silver = SilverWriter(lake, tag)
        self._staged = TableWriter(staging, FOLDED_ATTEMPTS, tag)
        self._loose = TableWriter(staging, LOOSE_EVENTS, tag)
        self._opened = pa.RecordBatch.from_pylist([], schema=SILVER_OPEN.arrow)

    def add(self, events: pa.RecordBatch) -> None:
        self._silver.add_parts(waiting_parts(events))
        self._take(rejected_entries(events))
        known = events.select(SILVER_OPEN.names)
        together = pa.Table.from_batches([self._opened, known])
        folded = fold_events(one_batch(together), is_all=False)
        self._take(folded.attempts)
        self._loose.add(folded.loose)
        self._opened = folded.opened

    def close(self) -> list[FileFacts]:
        self._loose.add(self._opened)
        return self._silver.close() + self._staged.close() + self._loose.close()

    def _take(self, attempts: pa.RecordBatch) -> None:
        self._silver.add(attempts)
        self._staged.add(attempts)


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


class DayLander:
    """Folds all events of some jobs, as `applyInArrow` hands them over, and writes those of a day.

    What began before and ended on the day is of the day, so the events before it come along.
    """

    def __init__(self, lake: Path, staging: Path, tag: str, day: date) -> None:
        self._lake = lake
        self._staging = staging
        self._tag = tag
        self._day = day

    def __call__(self, events: pa.Table) -> pa.Table:
        every = one_batch(events.select(BRONZE_EVENTS.names).cast(BRONZE_EVENTS.arrow))
        folded = fold_events(every, is_all=True)
        silver = SilverWriter(self._lake, self._tag)
        staged = TableWriter(self._staging, FOLDED_ATTEMPTS, self._tag)
        for attempts in (folded.attempts, rejected_entries(every)):
            silver.add(self._of_day(attempts))
            staged.add(self._of_day(attempts))
        silver.add_parts(active_parts(self._of_day(folded.opened)))
        of_day = self._of_day(every)
        silver.add_parts(waiting_parts(of_day))
        landed = Landed(files=silver.close() + staged.close(), row_count=of_day.num_rows)
        return pa.Table.from_batches([landed.fact()])

    def _of_day(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pc.equal(rows.column("event_date"), pa.scalar(self._day)))


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
