"""Which entries of the channels were seen, and which are known to be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from chasquimq.spark.offsets import id_parts
from chasquimq.spark.schema import GAP, UNREADABLE
from chasquimq.store.inspect.ranges import NO_ENTRY

SEQUENCE: Final = "sequence"
DROPPED: Final = "lost"
ENTRIES: Final = "entries"
ATTEMPTS: Final = "attempts"
_ENTRY_COLUMNS: Final = [
    "queue", "stream_id", "worker", "run", "seq", "outcome", "error_class", "error", "entry_rows",
    "lost", "is_last",
]  # fmt: skip


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A known loss: so many units after an entry, noticed at another; None: it is not known.

    What a reader missed was noticed at no entry: that is as old as the batch that reports it.
    """

    queue: str
    worker: str | None
    after_id: str
    noticed_id: str
    lost: int | None
    cause: str
    unit: str
    detail: str | None = None


class RunPart(msgspec.Struct, kw_only=True):
    """A stretch of the entries of one worker run, seen in the order of its numbers."""

    queue: str
    worker: str
    run: str
    first_seq: int
    last_seq: int
    first_id: str
    last_id: str
    entries: int = 0
    attempts: int = 0
    is_ended: bool = False


# The last number and the last entry of each run that was seen before.
KnownRuns = Mapping[tuple[str, str], tuple[int, str]]


class Ledger:
    """What one task saw of the history; it reads each queue in the order of the stream."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self._parts: dict[tuple[str, str], RunPart] = {}

    @property
    def parts(self) -> list[RunPart]:
        return list(self._parts.values())

    def see(self, rows: pa.RecordBatch) -> None:
        """Take note of the entries that these rows of the source are of."""
        first_rows = rows.filter(pc.less_equal(rows.column("row"), 0))
        for entry in first_rows.select(_ENTRY_COLUMNS).to_pylist():
            self._see(entry)

    def _see(self, entry: dict[str, Any]) -> None:
        if entry["outcome"] in (GAP, UNREADABLE):
            self.gaps.append(_reported_gap(entry))
        if entry["lost"] and entry["outcome"] != GAP:
            self.gaps.append(_gap(entry, entry["stream_id"], entry["lost"], DROPPED, ATTEMPTS))
        if entry["run"] is not None and entry["seq"] is not None:
            self._follow(entry)

    def _follow(self, entry: dict[str, Any]) -> None:
        key, seq, entry_id = (entry["queue"], entry["run"]), entry["seq"], entry["stream_id"]
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = RunPart(
                queue=entry["queue"], worker=entry["worker"] or "", run=entry["run"],
                first_seq=seq, last_seq=seq, first_id=entry_id, last_id=entry_id,
            )  # fmt: skip
        elif seq > part.last_seq + 1:
            missing = seq - part.last_seq - 1
            self.gaps.append(_gap(entry, part.last_id, missing, SEQUENCE, ENTRIES))
        part.last_seq, part.last_id = max(part.last_seq, seq), entry_id
        part.entries += 1
        part.attempts += entry["entry_rows"] or 0
        part.is_ended = part.is_ended or bool(entry["is_last"])


def event_gaps(rows: pa.RecordBatch) -> list[Gap]:
    """The losses among rows of the events source."""
    is_marker = pc.is_in(rows.column("event"), pa.array([GAP, UNREADABLE]))
    return [
        _missed_events(row) if row["event"] == GAP else _unread_event(row)
        for row in rows.filter(is_marker).to_pylist()
    ]


def sequence_gaps(parts: Iterable[RunPart], known: KnownRuns) -> list[Gap]:
    """Numbers that are missing between what was seen before and what the tasks saw."""
    gaps: list[Gap] = []
    last = dict(known)
    for part in sorted(parts, key=lambda one: (one.queue, one.run, one.first_seq)):
        key = (part.queue, part.run)
        seq, entry_id = last.get(key, (0, NO_ENTRY))
        if part.first_seq > seq + 1:
            gaps.append(_sequence_gap(part, entry_id, part.first_seq - seq - 1))
        last[key] = max((seq, entry_id), (part.last_seq, part.last_id))
    return gaps


def lost_total(gaps: Sequence[Gap]) -> int:
    """How much is known to be missing; a trimmed entry also leaves a hole in its run's numbers."""
    counts: dict[str, int] = {}
    for gap in gaps:
        counts[gap.cause] = counts.get(gap.cause, 0) + (gap.lost or 0)
    reported = counts.pop(DROPPED, 0)
    holes = counts.pop(SEQUENCE, 0)
    return reported + max(holes, sum(counts.values()))


def id_ms(entry_id: str) -> int:
    """When the server took an entry."""
    return id_parts(entry_id)[0]


def _missed_events(row: dict[str, Any]) -> Gap:
    return Gap(
        queue=row["queue"], worker=None, after_id=row["stream_id"], noticed_id=NO_ENTRY,
        lost=row["lost"], cause=row["fault"], unit=ENTRIES, detail=row["reason"],
    )  # fmt: skip


def _unread_event(row: dict[str, Any]) -> Gap:
    return Gap(
        queue=row["queue"], worker=None, after_id=row["stream_id"], noticed_id=row["stream_id"],
        lost=1, cause=UNREADABLE, unit=ENTRIES, detail=row["fault"],
    )  # fmt: skip


def _reported_gap(entry: dict[str, Any]) -> Gap:
    if entry["outcome"] == UNREADABLE:
        return _gap(entry, entry["stream_id"], 1, UNREADABLE, ENTRIES)
    missed = _gap(entry, entry["stream_id"], entry["lost"], entry["error_class"], ENTRIES)
    return msgspec.structs.replace(missed, noticed_id=NO_ENTRY)


def _gap(entry: dict[str, Any], after_id: str, lost: int | None, cause: str, unit: str) -> Gap:
    return Gap(
        queue=entry["queue"], worker=entry["worker"], after_id=after_id,
        noticed_id=entry["stream_id"], lost=lost, cause=cause, unit=unit, detail=entry["error"],
    )  # fmt: skip


def _sequence_gap(part: RunPart, after_id: str, lost: int) -> Gap:
    return Gap(
        queue=part.queue, worker=part.worker, after_id=after_id, noticed_id=part.first_id,
        lost=lost, cause=SEQUENCE, unit=ENTRIES,
    )  # fmt: skip
