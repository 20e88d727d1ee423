"""Opens tables of a lake to read them; without what writing takes, a question begins sooner."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from chasquimq.errors import PreconditionFailed, SettingsError
from chasquimq.spark.lake.tables import SILVER_JOBS, SILVER_JOBS_PARTS

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Both job tables are marked with it when parts move; who sees different marks looks again.
JOBS_MOVE: Final = "chasqui-jobs"
_MISREAD: Final = re.compile("%[0-9A-Fa-f]{2}|=")
_LOOKS_MAX: Final = 5
_LOOK_AGAIN_S: Final = 0.05


class JobTables(NamedTuple):
    """The two halves of all jobs, of one moment; `moved` are parts that the jobs hold already."""

    jobs: DeltaTable | None
    parts: DeltaTable | None
    moved: frozenset[Path] = frozenset()


def open_table(lake: Path, name: str) -> DeltaTable | None:
    """The table as its log describes it; None where nothing was written yet."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    path = lake / name
    if not (path / "_delta_log").is_dir():
        return None
    try:
        table = DeltaTable(path)
    except DeltaError as wrong:
        raise unreadable(path, wrong) from wrong
    _refuse_hidden_rows(name, table)
    return table


def unreadable(path: Path, wrong: Exception) -> SettingsError:
    """A sentence about files that are torn or gone; the cause is given in one line."""
    why = str(wrong).strip().splitlines()[0]
    hint = f"{why}; bring its files back from a copy, or name another with --lake"
    return PreconditionFailed("lake", str(path), "tables whose files are whole", hint=hint)


def resolved(lake: Path) -> Path:
    """The lake as its tables will write it.

    Raises:
        SettingsError: readers of its files would take the name for something else.
    """
    path = Path(lake).resolve()
    if _MISREAD.search(str(path)):
        hint = "readers take %41 for A, and folder=x for a column; name another with --lake"
        raise SettingsError("lake", str(path), "a path without %XX and without =", hint=hint)
    return path


def file_paths(table: DeltaTable | None) -> list[Path]:
    """The files that hold the rows of the table now; what compaction replaced is left out."""
    # Written as URLs are, so a space is %20.
    return [] if table is None else [Path(unquote(uri)) for uri in sorted(table.file_uris())]


def open_jobs(lake: Path) -> JobTables:
    """Both halves, neither in the middle of a move: no job is there twice, and none is missing."""
    halves = _open_halves(lake)
    for _ in range(_LOOKS_MAX):
        if _mark(halves.jobs) == _mark(halves.parts):
            return halves
        time.sleep(_LOOK_AGAIN_S)
        halves = _open_halves(lake)
    # The pipeline that moved them was killed on the way; the next pipeline ends it, perhaps just now.
    moved = _moved(lake)
    last = _open_halves(lake)
    return last if _mark(last.jobs) == _mark(last.parts) else halves._replace(moved=moved)


def _refuse_hidden_rows(name: str, table: DeltaTable) -> None:
    # Rows that another writer marked as deleted are still in the files, and would be counted.
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return
    if any(batch.num_rows for batch in table.deletion_vectors()):
        hint = "rewrite it with REORG TABLE … APPLY (PURGE), or ask it with Spark"
        raise PreconditionFailed("table", name, "free of deletion vectors", hint=hint)


def _open_halves(lake: Path) -> JobTables:
    return JobTables(open_table(lake, SILVER_JOBS.name), open_table(lake, SILVER_JOBS_PARTS.name))


def _mark(table: DeltaTable | None) -> int | None:
    return None if table is None else table.transaction_version(JOBS_MOVE)


def _moved(lake: Path) -> frozenset[Path]:
    """The parts that the move under way takes away."""
    from chasquimq.spark.lake.compaction import move_file

    move = move_file(lake).read()
    parts = SILVER_JOBS_PARTS.name
    removed = [one.removes for one in move.changes if one.table == parts] if move else []
    return frozenset(lake / parts / path for paths in removed for path in paths)
