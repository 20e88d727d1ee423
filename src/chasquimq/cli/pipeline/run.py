"""Carries the history of queues into tables: until a signal, once, or one day again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from chasquimq.cli.context import json_option, redis_url_option, running_server
from chasquimq.cli.output.render import emit_json, emit_table, talk
from chasquimq.cli.output.terminal import working
from chasquimq.cli.pipeline.options import (
    READING,
    RUNNING,
    BatchReporter,
    channel_option,
    conf_option,
    lake_option,
    master_option,
    need,
    queues_option,
    refuse_unknown_queues,
    slo_option,
    spark_session,
    sum_up,
    trigger_option,
    unknown_queues,
)
from chasquimq.cli.service import (
    Terminated,
    ended_like_an_interrupt,
    exit_code_of,
    reported_exit_code,
    start_logging,
)
from chasquimq.errors import PreconditionFailed
from chasquimq.model.stop_signals import StopSignals
from chasquimq.spark.pipeline.settings import ROWS_PER_BATCH

if TYPE_CHECKING:
    from chasquimq.spark.lake.compaction import Compacted
    from chasquimq.spark.lake.maintenance import Tidied
    from chasquimq.spark.pipeline.settings import PipelineRun, PipelineSettings

rows_option = click.option(
    "--max-rows",
    type=click.IntRange(1_000),
    default=ROWS_PER_BATCH,
    show_default=True,
    help="Rows of a batch, at most.",
)
strict_option = click.option(
    "--fail-on-data-loss",
    is_flag=True,
    help="End when something is missing.  [default: write it to bronze_gaps and go on]",
)


@click.command()
@queues_option
@lake_option
@slo_option
@channel_option
@trigger_option
@rows_option
@strict_option
@master_option
@conf_option
@redis_url_option
@json_option
def run(
    *,
    queues: tuple[str, ...],
    lake: Path,
    slo: Mapping[str, int],
    channel: str,
    trigger_ms: int,
    max_rows: int,
    fail_on_data_loss: bool,
    master: str,
    conf: Mapping[str, str],
    redis_url: str | None,
    as_json: bool,
) -> int:
    """Keep the tables up to date, batch after batch, until Ctrl+C or SIGTERM.

    A batch that was begun is finished. Where it was stopped, or killed, the next run goes on.
    """
    need(RUNNING)
    # A run that waits for its server says so.
    start_logging("warning", as_json=as_json)
    url = running_server(redis_url)
    settings = _settings(
        url, lake, queues=queues, slo=dict(slo), channel=channel, trigger_s=trigger_ms / 1000,
        max_rows_per_batch=max_rows, fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip
    for complaint in unknown_queues(url, queues):
        talk(f"warning: {complaint}; waiting for it")
    try:
        done, number = _follow(settings, master, conf, as_json=as_json)
    except Terminated:
        # Before the first batch there is nothing to finish, and nothing to report.
        return exit_code_of(signal.SIGTERM)
    sum_up(done, as_json=as_json, is_line=True)
    return reported_exit_code(number)


@click.command()
@queues_option
@lake_option
@slo_option
@channel_option
@rows_option
@strict_option
@master_option
@conf_option
@redis_url_option
@json_option
def once(
    *,
    queues: tuple[str, ...],
    lake: Path,
    slo: Mapping[str, int],
    channel: str,
    max_rows: int,
    fail_on_data_loss: bool,
    master: str,
    conf: Mapping[str, str],
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Read what is there, compact the tables, and stop."""
    need(RUNNING)
    url = running_server(redis_url)
    settings = _settings(
        url, lake, queues=queues, slo=dict(slo), channel=channel, max_rows_per_batch=max_rows,
        fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip
    refuse_unknown_queues(url, queues)
    from chasquimq.spark.lake.checkpoints import reserved

    with (
        ended_like_an_interrupt(),
        reserved(settings.lake),
        spark_session(master, conf) as session,
        working("reading") as say,
    ):
        from chasquimq.spark.pipeline.pipeline import Pipeline

        # The answer is one document, so batches are shown on a terminal only.
        reporter = BatchReporter(say, as_json=False)
        done = Pipeline(session, settings).once(None if as_json else reporter.note)
    sum_up(done, as_json=as_json)


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


def _follow(
    settings: PipelineSettings, master: str, conf: Mapping[str, str], *, as_json: bool
) -> tuple[PipelineRun, int | None]:
    """Batch after batch until a signal; what was done, and which signal it was."""
    from chasquimq.spark.lake.checkpoints import reserved

    # Spark handles Ctrl+C, too, and would drop the batch under way: the last handler wins.
    with (
        ended_like_an_interrupt(),
        reserved(settings.lake),
        spark_session(master, conf) as session,
        _until_signal() as stop,
        working("reading") as say,
    ):
        from chasquimq.spark.pipeline.pipeline import Pipeline

        done = Pipeline(session, settings).run(stop, BatchReporter(say, as_json=as_json).note)
    return done, stop.number


class _Stop(threading.Event):
    """Set by a signal; remembers which."""

    number: int | None = None


@contextmanager
def _until_signal() -> Generator[_Stop]:
    stop, signals = _Stop(), StopSignals()

    def note(number: int, _frame: object) -> None:
        asked = signals.note(number)
        if asked == "at_once":
            raise KeyboardInterrupt
        if asked is None:
            return
        stop.number = number
        stop.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _settings(url: str, lake: Path, **more: Any) -> PipelineSettings:
    """The settings of a pipeline; what cannot be read or written is refused before Spark starts."""
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.pipeline.readiness import refuse_early
    from chasquimq.spark.pipeline.settings import PipelineSettings

    settings = PipelineSettings(lake=lake, connection=ConnectionSettings(url=url), **more)
    refuse_early(settings)
    return settings
