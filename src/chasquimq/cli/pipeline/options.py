"""Defines what commands of the pipeline share: options, checks and the Spark session."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from chasquimq.cli.context import possible_queue, run, unknown_queue
from chasquimq.cli.output.render import emit_json, emit_json_line, talk
from chasquimq.cli.output.terminal import Update, working
from chasquimq.cli.service import raise_if_terminated, unwound_in_silence
from chasquimq.cli.values import DURATION, duration_text
from chasquimq.errors import NotSupportedError, StoreError
from chasquimq.spark.pipeline.settings import CHANNEL_CHOICES, DEFAULT_LAKE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chasquimq.spark.pipeline.settings import BatchReport, PipelineRun

DEFAULT_MASTER = "local[*]"
DEFAULT_TRIGGER = "1s"
# What the library of the tables cannot have in a path, whatever the file system says.
_PATH_REFUSED = set("[]^|\\")


class LakePath(click.ParamType[Path]):
    """A folder of tables; it need not be there yet."""

    name = "folder"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(str(value)).expanduser()
        odd = sorted({char for char in str(path.absolute()) if _is_refused(char)})
        if odd:
            self.fail(
                f"a path without {' '.join(map(repr, odd))} is needed, got {path}", param, ctx
            )
        if path.exists() and not path.is_dir():
            self.fail(f"a folder is needed, {path} is a file", param, ctx)
        return path


class Target(click.ParamType[tuple[str, int]]):
    """NAME=MS: jobs of that name should be done within so many milliseconds."""

    name = "NAME=MS"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return cast("tuple[str, int]", value)
        name, _, text = str(value).rpartition("=")
        if not name or not text:
            self.fail(f"{value!r} is no target; write NAME=MS, such as send-email=500", param, ctx)
        target_ms = _target_ms(text)
        if not 0 < target_ms < 10**12:
            self.fail(
                f"{text!r} is no target; write milliseconds above 0, such as 500, or a duration "
                "such as 2s",
                param,
                ctx,
            )
        return name, target_ms


class Setting(click.ParamType[tuple[str, str]]):
    """KEY=VALUE of Spark's own configuration."""

    name = "KEY=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return cast("tuple[str, str]", value)
        key, equals, text = str(value).partition("=")
        if not key.startswith("spark.") or not equals:
            self.fail(f"{value!r} is no setting; write spark.some.key=value", param, ctx)
        return key, text


def _target_ms(text: str) -> int:
    """Plain digits are milliseconds; 0: neither those nor a duration."""
    if text.isascii() and text.isdigit():
        return int(text[:15])
    try:
        return DURATION.convert(text, None, None)
    except click.BadParameter:
        return 0


def _is_refused(char: str) -> bool:
    return char in _PATH_REFUSED or not char.isprintable()


def _as_dict(_ctx: click.Context, _option: click.Parameter, pairs: Any) -> dict[str, Any]:
    return dict(pairs)


lake_option = click.option(
    "--lake",
    type=LakePath(),
    default=DEFAULT_LAKE,
    show_default=True,
    help="The folder of the tables.",
)
queues_option = click.option(
    "--queue",
    "queues",
    callback=possible_queue,
    multiple=True,
    help="Only this queue; may be given twice.  [default: every queue]",
)


def _no_connect(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value.startswith("sc://"):
        raise click.BadParameter(
            "a master is needed, as the pipeline commits from the driver, and a session of Spark "
            f"Connect has none; use local[*] or spark://host:port, got {value}"
        )
    return value


slo_option = click.option(
    "--slo",
    type=Target(),
    multiple=True,
    callback=_as_dict,
    help="A target: jobs of NAME done within MS; * is every name. May be given twice.",
)
master_option = click.option(
    "--master",
    default=DEFAULT_MASTER,
    show_default=True,
    callback=_no_connect,
    help="Spark's master: local[n], spark://…, yarn or k8s://…",
)
conf_option = click.option(
    "--conf",
    type=Setting(),
    multiple=True,
    callback=_as_dict,
    help="A setting of Spark; may be given twice.",
)
channel_option = click.option(
    "--channel",
    type=click.Choice(CHANNEL_CHOICES),
    default="auto",
    show_default=True,
    help="What to read: the history where there is one, or the events of any writer.",
)
trigger_option = click.option(
    "--trigger",
    "trigger_ms",
    type=DURATION,
    default=DEFAULT_TRIGGER,
    show_default=True,
    help="How often to read.",
)


READING = ("duckdb", "deltalake", "datasketches", "pyarrow", "numpy")
DRAWING = (*READING, "matplotlib")
RUNNING = (*READING, "pyspark", "pandas")
# What a condition on dead jobs needs; it reads no tables.
FILTERING = ("duckdb", "pyarrow")


def need(modules: Sequence[str], what: str = "the pipeline") -> None:
    """Refuse to begin where packages are missing, and name the smallest extra that brings them."""
    missing = missing_modules(modules)
    if missing:
        raise NotSupportedError(
            f"{what} needs {' and '.join(missing)}, not installed here; "
            f"pip install 'chasquimq-py[{_smallest_extra(modules)}]'"
        )


def refuse_named_lake(lake: Path) -> None:
    """Refuse a lake that was named and has no tables; without the usual one a command shows less."""
    source = click.get_current_context().get_parameter_source("lake")
    if source is not ParameterSource.COMMANDLINE:
        return
    need(READING, "--lake")
    from chasquimq.spark.query.queries import refuse_empty

    refuse_empty(lake)


def _smallest_extra(modules: Sequence[str]) -> str:
    if set(modules) <= set(READING):
        return "sql"
    return "report" if set(modules) <= set(DRAWING) else "spark"


def missing_modules(modules: Sequence[str] = (*RUNNING, "matplotlib")) -> list[str]:
    """Those that cannot be imported."""
    return [name for name in modules if find_spec(name) is None]


def refuse_unknown_queues(url: str, queues: Sequence[str]) -> None:
    """Raise a sentence about the first queue that the server does not have."""
    for complaint in run(_complaints(url, queues)):
        raise StoreError(complaint)


def unknown_queues(url: str, queues: Sequence[str]) -> list[str]:
    """A sentence for each queue that the server does not have."""
    return run(_complaints(url, queues))


@contextmanager
def spark_session(
    master: str, conf: Mapping[str, str], *, is_reported: bool = True
) -> Generator[SparkSession]:
    """A session that is gone afterwards; the user is shown what takes so long."""
    from chasquimq.spark.failures import hush_its_end, stop_session
    from chasquimq.spark.jvm import find_java
    from chasquimq.spark.session import SessionSettings, open_session

    settings = SessionSettings(master=master, conf=conf)
    find_java()
    if is_reported and not sys.stderr.isatty():
        talk("starting Spark …")
    with working("starting Spark"):
        session = open_session(settings)
    try:
        hush_its_end(session)
        raise_if_terminated()
        with unwound_in_silence():
            yield session
    finally:
        stop_session(session)


async def _complaints(url: str, queues: Sequence[str]) -> list[str]:
    from chasquimq.queue.inspector import Inspector

    async with Inspector(redis_url=url) as inspector:
        survey = await inspector.survey(list(queues))
        unknown = [one.queue for one in survey.snapshots if not one.exists]
        known = await inspector.queues() if unknown else []
    return [unknown_queue(name, known) for name in unknown]


class BatchReporter:
    """Reports each batch that was committed."""

    def __init__(self, update: Update, *, as_json: bool) -> None:
        self._update = update
        self._as_json = as_json

    def note(self, batch: BatchReport) -> None:
        if self._as_json:
            emit_json_line(batch_facts(batch))
            return
        line = batch_text(batch)
        self._update(line)
        if not sys.stderr.isatty() and batch.rows:
            click.echo(line, err=True)


def batch_text(batch: BatchReport) -> str:
    """A batch on a line."""
    lag = "" if batch.lag_ms is None else f", lag {duration_text(batch.lag_ms)}"
    return (
        f"{batch.channel} batch {batch.batch_id}: {batch.rows:,} rows, "
        f"{batch.rows_per_s:,.0f}/s{lag}, lost {batch.lost:,}"
    )


def batch_facts(batch: BatchReport) -> dict[str, Any]:
    """A batch for programs."""
    return {
        "channel": batch.channel,
        "batch_id": batch.batch_id,
        "rows": batch.rows,
        "rows_per_s": round(batch.rows_per_s),
        "lag_ms": batch.lag_ms,
        "lost": batch.lost,
        "seconds": round(batch.seconds, 3),
    }


def sum_up(done: PipelineRun, *, as_json: bool, is_line: bool = False) -> None:
    """Say what a whole run came to."""
    if as_json:
        (emit_json_line if is_line else emit_json)(run_facts(done))
    else:
        click.echo(run_text(done))


def run_facts(done: PipelineRun) -> dict[str, Any]:
    """A whole run for programs."""
    return {
        "batches": done.batches,
        "rows": done.rows,
        "lost": done.lost,
        "seconds": round(done.seconds, 3),
        "channels": dict(done.channels),
    }


def run_text(done: PipelineRun) -> str:
    """A whole run in a sentence."""
    batches = "1 batch" if done.batches == 1 else f"{done.batches:,} batches"
    return f"{done.rows:,} rows in {batches}, {done.seconds:.1f} s, lost {done.lost:,}"
