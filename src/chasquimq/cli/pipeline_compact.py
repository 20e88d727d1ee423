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


@click.command()
@lake_option
@json_option
def compact(lake: Path, as_json: bool) -> None:
    """Merge rows of one key for good, join small files, and delete what was replaced a day ago.

    A pipeline that runs does this by itself.
    """
    need(READING)
    with working("compacting"):
        done, deleted = _compact(lake)
    if as_json:
        tables = [_facts(one) for one in done]
        emit_json({"tables": tables, "deleted_files": len(deleted)})
        return
    emit_table([_facts(one) for one in done])
    talk(f"{len(deleted):,} files deleted" if done or deleted else "nothing to do")


def _compact(path: Path) -> tuple[list[Compacted], list[str]]:
    from chasquimq.spark.answers import refuse_empty
    from chasquimq.spark.answers_progress import CHANNELS
    from chasquimq.spark.checkpoints import Checkpoint, only_pipeline
    from chasquimq.spark.compaction import compact as compact_tables
    from chasquimq.spark.lake import Lake

    refuse_empty(path)
    lake = Lake(path)
    with only_pipeline(lake.path):
        for channel in CHANNELS:
            Checkpoint(lake.path, channel).pending.settle(lake)
        return compact_tables(lake), lake.vacuum()


def _facts(one: Compacted) -> dict[str, str | int]:
    return {
        "table": one.table,
        "files_before": one.files_before,
        "files_after": one.files_after,
    }
