"""Keeps a lake in shape: few files, one row a key, and nothing on disk that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from chasquimq.spark.checkpoints import only_pipeline
from chasquimq.spark.compaction import Compacted, compact

if TYPE_CHECKING:
    from chasquimq.spark.lake import Lake


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
        return Tidied(compact(lake), lake.vacuum())
