"""Tables of a report: the columns that say something, and no more rows than anyone reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from chasquimq.spark.report.format import count_text, name_text, shown
from chasquimq.spark.report.shape import Column, Grid

ROWS_MAX: Final = 25
QUEUE: Final = Column("queue", "queue")
NAME: Final = Column("name", "name", "name")


def grid(
    rows: Sequence[Mapping[str, Any]],
    *columns: Column,
    title: str = "",
    what: str = "rows",
    is_queue_shown: bool = False,
) -> Grid:
    """A table of the first rows; the queue is shown where there is more than one, or if asked."""
    are_many = len({row.get("queue") for row in rows}) > 1
    picked = [one for one in columns if one != QUEUE or are_many or is_queue_shown]
    left = len(rows) - ROWS_MAX
    note = f"and {count_text(left)} more {what}; `chasqui pipeline sql` has them all"
    return Grid(picked, list(rows[:ROWS_MAX]), title, note if left > 0 else "")


def first_of(title: str, rows: Sequence[Mapping[str, Any]], shown_max: int) -> str:
    """The title of a drawing that has room for the first few; it says how many there are."""
    if len(rows) <= shown_max:
        return title
    return f"{title} (the first {count_text(shown_max)} of {count_text(len(rows))})"


def labels(rows: Sequence[Mapping[str, Any]], *names: str) -> list[str]:
    """What to write beside a bar: the names, and the queue where there is more than one."""
    are_many = len({row.get("queue") for row in rows}) > 1
    parts = ("queue", *names) if are_many else names
    return [shown(" · ".join(name_text(row[part]) for part in parts)) for row in rows]
