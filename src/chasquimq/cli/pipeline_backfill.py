"""`chasqui pipeline backfill`: one day of the tables made again from what was read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from chasquimq.cli.options import json_option
from chasquimq.cli.pipeline_needs import RUNNING, need, spark_session
from chasquimq.cli.pipeline_options import conf_option, lake_option, master_option, slo_option
from chasquimq.cli.pipeline_talk import sum_up, working
from chasquimq.cli.signals import ended_like_an_interrupt
from chasquimq.errors import SettingsError

if TYPE_CHECKING:
    from chasquimq.spark.pipeline_settings import PipelineSettings


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
    from chasquimq.spark.checkpoints import reserved

    with (
        ended_like_an_interrupt(),
        reserved(lake),
        spark_session(master, conf) as session,
        working("making the day again"),
    ):
        from chasquimq.spark.pipeline import Pipeline

        done = Pipeline(session, settings).backfill(chosen)
    sum_up(done, as_json=as_json)


def _refuse_absent_day(path: Path, day: date) -> None:
    from chasquimq.spark.answers import refuse_empty
    from chasquimq.spark.lake import Lake

    refuse_empty(path)
    lake = Lake(path)
    days = sorted({*lake.days("bronze_attempts"), *lake.days("bronze_events")})
    if str(day) not in days:
        there = f"{days[0]} to {days[-1]}" if days else "none yet"
        raise SettingsError("day", str(day), f"a day of which bronze has rows ({there})")


def _day_settings(lake: Path, slo: Mapping[str, int]) -> PipelineSettings:
    """A day is made again without a server; its lake must be writable."""
    from chasquimq.spark.pipeline_settings import PipelineSettings
    from chasquimq.spark.readiness import refuse_unwritable

    refuse_unwritable(lake)
    return PipelineSettings(lake=lake, slo=dict(slo))
