"""Keeps a lake in shape: few files, one row a key, and nothing on disk that is never read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from chasquimq.spark.lake.checkpoints import only_pipeline, own_folder
from chasquimq.spark.lake.compaction import Compacted, compact

if TYPE_CHECKING:
    from pathlib import Path

    from chasquimq.spark.lake.lake import Lake

# How long a few commits wait for more.
_TIDY_AFTER_S: Final = 600.0
# To find what is never read takes a look at every file there is.
_VACUUM_EVERY_S: Final = 3_600.0


class Tidied(NamedTuple):
    """Tables whose files were rewritten, and the files that are gone from the disk."""

    compacted: list[Compacted]
    deleted: list[str]


def tidy(lake: Lake) -> Tidied:
    """Compact every table of a lake that no pipeline holds, and delete what was replaced.

    Raises:
        SettingsError: a pipeline is running on this lake; it tidies by itself.
    """
    with only_pipeline(lake):
        return Tidied(compact(lake), _vacuum(lake))


class Tidying:
    """Tidies a lake that is held: after so many commits, or some time after the first of them."""

    def __init__(
        self, lake: Lake, commits_max: int, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._lake = lake
        self._commits_max = commits_max
        self._clock_s = clock_s
        self._commit_count = 0
        self._tidied_s = clock_s()

    def note_commit(self) -> None:
        self._commit_count += 1

    @property
    def is_due(self) -> bool:
        if not self._commit_count:
            return False
        waited_s = self._clock_s() - self._tidied_s
        return self._commit_count >= self._commits_max or waited_s >= _TIDY_AFTER_S

    def tidy(self) -> None:
        """Compact, and once an hour delete what was replaced a day ago."""
        compact(self._lake)
        if _is_vacuum_due(self._lake):
            _vacuum(self._lake)
        self._commit_count, self._tidied_s = 0, self._clock_s()


def _vacuum(lake: Lake) -> list[str]:
    deleted = lake.vacuum()
    _vacuumed(lake).parent.mkdir(exist_ok=True)
    _vacuumed(lake).touch()
    return deleted


def _is_vacuum_due(lake: Lake) -> bool:
    try:
        age_s = time.time() - _vacuumed(lake).stat().st_mtime
    except FileNotFoundError:
        return True
    # What was done in the future was done by a clock that stepped back since.
    return not 0 <= age_s < _VACUUM_EVERY_S


def _vacuumed(lake: Lake) -> Path:
    """A file that is as old as the last look."""
    return own_folder(lake.path) / "vacuumed"
