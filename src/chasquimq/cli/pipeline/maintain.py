"""`chasqui pipeline backfill`: one day of the tables made again from what was read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from chasquimq.cli.context import json_option, limit_option
from chasquimq.cli.output.progress import working
from chasquimq.cli.output.render import emit_json, emit_table, talk
from chasquimq.cli.pipeline.options import (
    READING,
    RUNNING,
    conf_option,
    lake_option,
    master_option,
    need,
    slo_option,
    spark_session,
    sum_up,
)
from chasquimq.cli.signals import ended_like_an_interrupt
from chasquimq.errors import PreconditionFailed
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.spark.lake.compaction import Compacted
    from chasquimq.spark.lake.maintenance import Tidied
    from chasquimq.spark.pipeline.settings import PipelineSettings
    from chasquimq.spark.query.queries import Answer


@click.command()
@click.argument("day", metavar="DAY", type=click.DateTime(["%Y-%m-%d"]))
@lake_option
@slo_option
@master_option
@conf_option
@json_option
def backfill(
    day: Any,
    lake: Path,
    slo: Mapping[str, int],
    master: str,
    conf: Mapping[str, str],
    as_json: bool,
) -> None:
    """Make the silver and gold rows of DAY again from bronze, after a target or rule changed."""
    need(RUNNING)
    chosen = cast("date", day.date())
    _refuse_absent_day(lake, chosen)
    settings = _day_settings(lake, slo)
    from chasquimq.spark.lake.checkpoints import reserved

    with (
        ended_like_an_interrupt(),
        reserved(lake),
        spark_session(master, conf) as session,
        working("making the day again"),
    ):
        from chasquimq.spark.pipeline.pipeline import Pipeline

        done = Pipeline(session, settings).backfill(chosen)
    sum_up(done, as_json=as_json)


def _refuse_absent_day(path: Path, day: date) -> None:
    from chasquimq.spark.lake.lake import Lake
    from chasquimq.spark.query.queries import refuse_empty

    refuse_empty(path)
    lake = Lake(path)
    days = sorted({*lake.days("bronze_attempts"), *lake.days("bronze_events")})
    if str(day) not in days:
        there = f"{days[0]} to {days[-1]}" if days else "none yet"
        raise PreconditionFailed("day", str(day), f"a day of which bronze has rows ({there})")


def _day_settings(lake: Path, slo: Mapping[str, int]) -> PipelineSettings:
    """A day is made again without a server; its lake must be writable."""
    from chasquimq.spark.pipeline.readiness import refuse_unwritable
    from chasquimq.spark.pipeline.settings import PipelineSettings

    refuse_unwritable(lake)
    return PipelineSettings(lake=lake, slo=dict(slo))


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
    from chasquimq.spark.lake.lake import Lake
    from chasquimq.spark.lake.maintenance import tidy
    from chasquimq.spark.query.queries import refuse_empty

    refuse_empty(path)
    return tidy(Lake(path))


def _facts(one: Compacted) -> dict[str, str | int]:
    return {
        "table": one.table,
        "files_before": one.files_before,
        "files_after": one.files_after,
    }


ROWS_DEFAULT = 1_000


@click.command()
@click.argument("question", metavar="SELECT|-")
@limit_option(ROWS_DEFAULT, "Rows to show, at most.")
@lake_option
@json_option
def sql(question: str, limit: int, lake: Path, as_json: bool) -> None:
    """Answer one SELECT from the tables; - reads it from stdin.

    Rows of one key are merged already, so sums are right while the pipeline runs. Nothing is
    written, and no Java is needed.
    """
    need(READING)
    from chasquimq.spark.query.queries import Answers

    text = sys.stdin.read() if question == "-" else question
    with Answers(lake) as answers:
        answer = answers.sql(text, rows_max=limit)
    if as_json:
        emit_json([json_value(row) for row in answer.dicts()])
    elif answer.rows:
        emit_table(_rows(answer))
    else:
        talk("no rows")
    if answer.is_cut:
        talk(f"the first {limit:,} rows; --limit shows more")


def _rows(answer: Answer) -> list[dict[str, Any]]:
    return [{name: _cell(value) for name, value in row.items()} for row in answer.dicts()]


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, datetime | date):
        return str(value).removesuffix("+00:00")
    return f"{value:g}" if isinstance(value, float) else value
