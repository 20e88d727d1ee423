"""`chasqui pipeline compact`: few large files instead of many small ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chasquimq.cli.options import json_option
from chasquimq.cli.pipeline_needs import READING, need
from chasquimq.cli.pipeline_options import lake_option
from chasquimq.cli.pipeline_talk import working
from chasquimq.cli.render import emit_json, emit_table, talk

if TYPE_CHECKING:
    from chasquimq.spark.compaction import Compacted
    from chasquimq.spark.tidying import Tidied


@click.command()
@lake_option
@json_option
def compact(lake: Path, as_json: bool) -> None:
    """Merge rows of one key for good, join small files, and delete what was replaced a day ago.

    A pipeline that runs does all this by itself, and keeps others from it meanwhile.
    """
    need(READING)
    with working("compacting"):
        done, deleted = _tidied(lake)
    if as_json:
        tables = [_facts(one) for one in done]
        emit_json({"tables": tables, "deleted_files": len(deleted)})
        return
    emit_table([_facts(one) for one in done])
    talk(f"{len(deleted):,} files deleted" if done or deleted else "nothing to do")


def _tidied(path: Path) -> Tidied:
    from chasquimq.spark.answers import refuse_empty
    from chasquimq.spark.lake import Lake
    from chasquimq.spark.tidying import tidy

    refuse_empty(path)
    return tidy(Lake(path))


def _facts(one: Compacted) -> dict[str, str | int]:
    return {
        "table": one.table,
        "files_before": one.files_before,
        "files_after": one.files_after,
    }
