"""Opens tables of a lake to read them; without what writing takes, a question begins sooner."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from chasquimq.spark.table_schemas import SILVER_JOBS, SILVER_JOBS_PARTS

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Compaction moves parts of jobs to the jobs, and marks both tables with the same number.
JOBS_MOVE: Final = "chasqui-jobs"
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

    path = lake / name
    return DeltaTable(path) if (path / "_delta_log").is_dir() else None


def file_paths(table: DeltaTable | None) -> list[Path]:
    """The files that hold the rows of the table now; what compaction replaced is left out."""
    # Spelled as URLs are, so a space is %20.
    return [] if table is None else [Path(unquote(uri)) for uri in sorted(table.file_uris())]


def open_jobs(lake: Path) -> JobTables:
    """Both halves, neither in the middle of a move: no job is there twice, and none is missing."""
    halves = _open_halves(lake)
    for _ in range(_LOOKS_MAX):
        if _mark(halves.jobs) == _mark(halves.parts):
            return halves
        time.sleep(_LOOK_AGAIN_S)
        halves = _open_halves(lake)
    # Whoever moved them was killed on the way; the next pipeline ends it.
    return halves._replace(moved=_moved(lake))


def _open_halves(lake: Path) -> JobTables:
    return JobTables(open_table(lake, SILVER_JOBS.name), open_table(lake, SILVER_JOBS_PARTS.name))


def _mark(table: DeltaTable | None) -> int | None:
    return None if table is None else table.transaction_version(JOBS_MOVE)


def _moved(lake: Path) -> frozenset[Path]:
    """The parts that the move under way takes away."""
    try:
        move = json.loads((lake / "_pipeline" / "jobs-move.json").read_text())
    except FileNotFoundError:
        return frozenset()
    parts = SILVER_JOBS_PARTS.name
    removed = [change["removes"] for change in move["changes"] if change["table"] == parts]
    return frozenset(lake / parts / unquote(path) for paths in removed for path in paths)
