"""What bronze holds of each queue, read from its files in little memory and without a JVM."""

# ruff: noqa: S608  names and paths are our own, and paths are quoted
from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from chasquimq.spark.lake.table_sql import rows_of

if TYPE_CHECKING:
    from chasquimq.spark.lake.lake import Lake
    from chasquimq.spark.lake.table_shape import Table


def queues_in(lake: Lake, table: Table) -> set[str]:
    """Every queue that a table has rows of."""
    rows = rows_of(table, lake.files(table.name))
    return {queue for (queue,) in _asked(f"select distinct queue from ({rows})")}


def last_ids(lake: Lake, table: Table, queues: Collection[str]) -> dict[str, str]:
    """The last entry of each of these queues that a table has rows of.

    Days are those of entries, so the newest day of a queue has its last entry.
    """
    last: dict[str, str] = {}
    for day in reversed(lake.days(table.name)):
        missing = sorted(set(queues) - last.keys())
        if not missing:
            break
        last |= _last_of(table, lake.files(table.name, day), missing)
    return last


def _last_of(table: Table, paths: Sequence[Path], queues: list[str]) -> dict[str, str]:
    number = "split_part(stream_id, '-', {})::ubigint".format
    question = (
        f"select queue, max([{number(1)}, {number(2)}]) from ({rows_of(table, paths)}) "
        "where queue in (select unnest($queues)) group by queue"
    )
    found = _asked(question, queues=queues)
    return {queue: f"{ms}-{seq}" for queue, (ms, seq) in found}


def _asked(question: str, **values: object) -> list[tuple[Any, ...]]:
    connection: Any = duckdb.connect()
    try:
        return connection.execute(question, values).fetchall()
    finally:
        connection.close()
