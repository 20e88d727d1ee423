"""Finished attempts for the history, as many and as odd as a test wants them."""

from __future__ import annotations

from chasquimq.model.delivery import Failure
from chasquimq.wire.history_writer import HistoryBlock, HistoryRows, encode_history

BASE_MS = 1_800_000_000_000
_FILLED = {
    "names": "mail",
    "attempts": 1,
    "outcomes": 0,
    "enqueued_ms": BASE_MS - 30,
    "ready_ms": BASE_MS - 20,
    "due_ms": None,
    "started_us": BASE_MS * 1_000 + 5,
    "durations_us": 1_500,
    "deliveries": 1,
    "backoffs_ms": 0,
    "failures": None,
}


def attempts(count: int, *, prefix: str = "job", **columns) -> HistoryRows:
    """Rows that differ in their ids; a column given by name is the same in all of them."""
    rows = HistoryRows()
    rows.job_ids = [f"{prefix}-{at}" for at in range(count)]
    for column, value in (_FILLED | columns).items():
        setattr(rows, column, [value] * count)
    return rows


def block_of(rows: HistoryRows) -> HistoryBlock:
    """A block in which these rows wait to be spelled."""
    block = HistoryBlock()
    block.rows = rows
    return block


def failed(message: str = "no route") -> Failure:
    return Failure("OSError", message)


def entry(count: int, *, seq: int = 0, run: str = "run-1", prefix: str = "job", **options):
    """An entry of the history: fields and values in turn."""
    block = block_of(attempts(count, prefix=f"{prefix}-{seq}"))
    return encode_history(block, worker="worker-1", run=run, seq=seq, **options)
