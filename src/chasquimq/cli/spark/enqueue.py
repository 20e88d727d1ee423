"""`chasqui spark enqueue`: adds every row of a table, of files or of a query as a job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from chasquimq.cli.context import any_server, json_option, redis_url_option
from chasquimq.cli.output.render import emit_json, talk
from chasquimq.cli.output.terminal import progress_bar
from chasquimq.cli.pipeline.options import (
    conf_option,
    master_option,
    need,
    spark_session,
    unknown_queues,
)
from chasquimq.cli.values import AT_LEAST_1, DURATION, RATE
from chasquimq.errors import ChasquiError, SettingsError, SparkFailed, StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from chasquimq.spark.queues.report import Summary

# Spark's own name for it may be a key of the data.
CORRUPT: Final = "_chasqui_corrupt_line"
# Spark reads no column of corrupt lines alone; this one is beside it, and always empty.
_BESIDE: Final = "_chasqui_nothing"


class JsonLines:
    """The lines of JSON files; `rows` are those that can be read."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self._path = path
        found = session.read.json(path, columnNameOfCorruptRecord=CORRUPT)
        if found.columns == [CORRUPT]:
            raise StoreError(
                f"{path} must hold a JSON object on each line, and no line of it is one; "
                "write every object on a line of its own"
            )
        self._has_corrupt = CORRUPT in found.columns
        self.rows = (
            found.where(found[CORRUPT].isNull()).drop(CORRUPT) if self._has_corrupt else found
        )

    def beside(self, chosen: DataFrame) -> DataFrame:
        """These rows and the corrupt lines, which have nothing but a column of their own."""
        if not self._has_corrupt:
            return chosen
        from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

        nothing = [F.lit(None).cast(one.dataType).alias(one.name) for one in chosen.schema.fields]
        corrupt = self._corrupt().select(*nothing, CORRUPT)
        return chosen.select("*", F.lit(None).cast("string").alias(CORRUPT)).union(corrupt)

    def _corrupt(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

        schema = f"{CORRUPT} string, {_BESIDE} string"
        lines = self._session.read.json(
            self._path, schema=schema, columnNameOfCorruptRecord=CORRUPT
        )
        text = F.concat(CORRUPT, F.coalesce(_BESIDE, F.lit("")))
        return lines.where(F.col(CORRUPT).isNotNull()).select(text.alias(CORRUPT))


NEEDED = ("pyspark", "pyarrow", "pandas")
_SOURCES = ("table", "parquet", "csv", "json", "sql")
_VIEW = "input"
_OUR_WORDS = {
    "onError=skip": "--on-error skip",
    "allowUnnamed=true": "--allow-unnamed",
    "runId=": "--run-id ",
    **{
        f"{what}Column": f"--{what}-column"
        for what in ("id", "name", "payload", "delay", "attempts")
    },
}


@click.command(epilog="Exit codes: 0 every row is in the queue, or was skipped as asked; 1 not so; "
               "2 wrong usage, or SQL that Spark cannot answer.")  # fmt: skip
@click.option("--queue", required=True, help="The queue to fill.")
@click.option("--table", help="A table that Spark knows.")
@click.option("--parquet", metavar="PATH", help="Parquet files, or a folder of them.")
@click.option("--csv", metavar="PATH", help="CSV files with a header; all columns are text.")
@click.option("--json-lines", metavar="PATH", help="JSON files, one object a line.")
@click.option(
    "--sql", metavar="QUERY", help=f"A query; files given beside it are its table {_VIEW}."
)
@click.option("--id-column", help="Job ids: a row that is written twice is one job.")
@click.option("--name-column", help="Job names.")
@click.option("--name", help="One name for all jobs.")
@click.option(
    "--allow-unnamed", is_flag=True,
    help="Add jobs without a name: only one handler for every name runs them.",
)  # fmt: skip
@click.option(
    "--payload-column", help="Payloads; bytes go as they are.  [default: all other columns]"
)
@click.option("--delay-column", help="Milliseconds to wait.")
@click.option("--attempts-column", help="How often a job may run.")
@click.option("--max-rate", type=RATE, help="Rows a second at most, of all tasks together.")
@click.option("--max-stream-len", type=AT_LEAST_1, help="Wait while the queue holds as many jobs.")
@click.option("--full-timeout", "full_timeout_ms", type=DURATION, help="How long to wait then.")
@click.option("--unique-for", "unique_for_ms", type=DURATION, help="How long ids are known.")
@click.option("--run-id", help="A second run of this id adds only rows that are missing.")
@click.option("--on-error", type=click.Choice(["fail", "skip"]), default="fail", show_default=True,
              help="What to do with rows that cannot become jobs.")  # fmt: skip
@click.option(
    "--unchecked", is_flag=True, help="Add rows at once, before all of them were looked at."
)
@click.option("--dry-run", is_flag=True, help="Read and check every row, and write none.")
@master_option
@conf_option
@redis_url_option
@json_option
def enqueue(
    *,
    queue: str,
    json_lines: str | None,
    master: str,
    conf: Mapping[str, str],
    redis_url: str | None,
    as_json: bool,
    full_timeout_ms: int | None,
    unchecked: bool,
    **given: Any,
) -> int:
    """Add every row of a table, of files or of a query as a job to a queue.

    All rows are checked before the first is added, unless rows that cannot become jobs are to be
    skipped. Rows are read and added by Spark's tasks, never by this command. A task that is run
    again adds nothing twice. A server for this directory is started where there is none.
    """
    need(NEEDED, "spark enqueue")
    sources = {name: given.pop(name, None) for name in _SOURCES} | {"json": json_lines}
    _check_sources(sources)
    _check_options(queue, given)
    options = {name: value for name, value in given.items() if value not in (None, "", False)}
    if full_timeout_ms is not None:
        options["queue_full_timeout_ms"] = full_timeout_ms
    url = any_server(redis_url)
    # A server that does not answer is reported before Spark starts; the queue may well be new.
    unknown_queues(url, [queue])
    with spark_session(master, conf) as session:
        options["check_first"] = _is_checked_first(options) and not unchecked
        done = _enqueue(read_rows(session, sources), queue, url, options)
    return report(done, queue, options, as_json=as_json)


def _is_checked_first(options: Mapping[str, Any]) -> bool:
    return options["on_error"] == "fail" and not options.get("dry_run")


def _check_sources(sources: Mapping[str, str | None]) -> None:
    files = [name for name in ("table", "parquet", "csv", "json") if sources[name]]
    if len(files) > 1:
        raise click.UsageError(f"give one of --table and files, got {' and '.join(files)}")
    if not files and not sources["sql"]:
        raise click.UsageError(
            "give what to read: --table, --parquet, --csv, --json-lines, or --sql"
        )
    for name in ("parquet", "csv", "json"):
        path = sources[name]
        # Globs and addresses of other file systems are Spark's to look up.
        is_plain = path and not any(mark in path for mark in "*?[{") and "://" not in path
        if path and is_plain and not Path(path).exists():
            raise StoreError(f"{path} must be there, and is not; look at the path")


def _check_options(queue: str, given: Mapping[str, Any]) -> None:
    """What is wrong with the words themselves is reported before Spark starts."""
    from chasquimq.spark.queues.options import parse_options

    if given["name"] and given["name_column"]:
        raise click.UsageError("give --name or --name-column, not both")
    words = {"queue": queue, "runId": given["run_id"], "name": given["name"]}
    parse_options({name: text for name, text in words.items() if text is not None})
    has_name = (given["name"] or "").strip() or given["name_column"]
    if not (has_name or given["allow_unnamed"]):
        raise click.UsageError(
            "give --name-column or --name; a job without a name runs only where one function "
            "handles every name, and --allow-unnamed adds such jobs"
        )


def read_rows(session: SparkSession, sources: Mapping[str, str | None]) -> DataFrame:
    """The rows of a table, of files or of a query.

    Raises:
        SettingsError: the query is none that Spark can answer.
        SparkFailed: there is nothing to read.
        StoreError: no line of a JSON file is an object.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from chasquimq.spark.failures import first_line

    try:
        if sources["json"]:
            lines = JsonLines(session, sources["json"])
            return lines.beside(_chosen(session, lines.rows, sources["sql"]))
        return _chosen(session, _read(session, sources), sources["sql"])
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(
            f"what to read must be readable, but Spark said: {first_line(error)}; look at the path "
            "or the table"
        ) from error


def _chosen(session: SparkSession, frame: DataFrame | None, query: str | None) -> DataFrame:
    if query is None:
        assert frame is not None, "what to read was checked before"
        return frame
    if frame is not None:
        frame.createOrReplaceTempView(_VIEW)
    return _asked(session, query)


def _asked(session: SparkSession, query: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    from chasquimq.spark.failures import first_line

    try:
        return session.sql(query)
    except AnalysisException as wrong:
        rule = "a query that Spark can answer"
        raise SettingsError("sql", query, rule, hint=first_line(wrong)) from None


def _read(session: SparkSession, sources: Mapping[str, str | None]) -> DataFrame | None:
    if sources["table"]:
        return session.table(sources["table"])
    if sources["parquet"]:
        return session.read.parquet(sources["parquet"])
    return session.read.csv(sources["csv"], header=True) if sources["csv"] else None


def _enqueue(frame: DataFrame, queue: str, url: str, options: Mapping[str, Any]) -> Summary:
    from chasquimq.spark.queues.enqueue import enqueue as write

    if CORRUPT in frame.columns:
        options = {**options, "corrupt_column": CORRUPT}
    title = f"{'checking' if options.get('dry_run') else 'adding to'} {queue}"
    with progress_bar(title) as advance:
        try:
            return write(
                frame, queue, redis_url=url, on_rows=lambda rows: advance(rows, 0), **options
            )  # fmt: skip
        except ChasquiError as error:
            error.args = (_in_our_words(str(error)),)
            raise


def _in_our_words(said: str) -> str:
    """Options as this command names them, not as a program does."""
    for theirs, ours in _OUR_WORDS.items():
        said = said.replace(theirs, ours)
    return said


def report(done: Summary, queue: str, options: Mapping[str, Any], *, as_json: bool) -> int:
    """Say what became of the rows, and answer the exit code."""
    is_dry = bool(options.get("dry_run"))
    if as_json:
        emit_json({"queue": queue, "dry_run": is_dry, **done.to_dict()})
    else:
        click.echo(summary_text(done, is_dry=is_dry))
        for what, count in sorted(done.faults.items()):
            talk(f"skipped: {count:,} with {what}")
    if done.conflicts:
        talk(f"{done.conflicts:,} rows have the id of another job, which stays as it was")
    sys.stdout.flush()
    is_refused = is_dry and done.skipped and options.get("on_error") != "skip"
    return 1 if is_refused or done.conflicts else 0


def summary_text(done: Summary, *, is_dry: bool) -> str:
    """A whole write in a sentence."""
    size = f"{done.payload_bytes / 1e6:,.1f} MB in {done.task_s:,.1f} s of {done.tasks:,} tasks"
    if is_dry:
        fit = f"{done.added:,} can become jobs, {done.skipped:,} cannot"
        return f"{done.rows:,} rows: {fit}; whether ids are taken was not looked up; {size}"
    return (
        f"{done.rows:,} rows: {done.added:,} added, {done.duplicates:,} were there, "
        f"{done.conflicts:,} in conflict, {done.skipped:,} skipped; {size}"
    )
