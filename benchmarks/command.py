"""Runs `chasqui bench`: this queue beside its peers and beside what the server could do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.context import server_options
from chasquimq.cli.output.render import clean, emit_json, emit_table
from chasquimq.cli.service import ended_like_an_interrupt

if TYPE_CHECKING:
    from benchmarks.run import Choice, Whole
    from benchmarks.server import Target

RESULTS = Path("benchmarks/results")


class BenchCommand(click.Command):
    """Its help ends with every scenario and what that measures."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from benchmarks.scenario import WHATS

        with formatter.section("Scenarios"):
            formatter.write_dl(list(WHATS.items()))


@click.command(cls=BenchCommand)
@click.argument("named", nargs=-1, metavar="[SCENARIO]...")
@click.option("--scenario", "scenarios", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--peer", "peers", multiple=True, help="Beside this one only; may be repeated. none: nobody."
)
@click.option(
    "--server",
    "binary",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The server program to measure on.  [default: the one `chasqui server` starts]",
)
@server_options("Measure on this server instead; it must be empty.")
@click.option(
    "--aof", type=click.Choice(["no", "everysec", "always"]), default="no", show_default=True,
    help="Let the server that is started keep its data on disk.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), help="Rounds per side.  [default: 5, quick 2]")
@click.option("--jobs", type=click.IntRange(1), help="Jobs per measurement, in every scenario.")
@click.option("--quick", "is_quick", is_flag=True, help="The main scenarios in under 2 minutes.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True, path_type=Path),
    help="Write everything to this file; - answers in JSON instead of a table.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep JSON, tables and charts here.  [default: benchmarks/results where there is one]",
)
def bench(
    *,
    named: tuple[str, ...],
    scenarios: tuple[str, ...],
    peers: tuple[str, ...],
    binary: Path | None,
    redis_url: str | None,
    aof: Any,
    rounds: int | None,
    jobs: int | None,
    is_quick: bool,
    json_path: Path | None,
    out: Path | None,
) -> None:
    """Measure this queue beside its peers, and beside the limit.

    All scenarios run when none is named. Peers: original, original+uvloop, taskiq, arq, streaq,
    saq, dramatiq, rq, celery, bullmq; each is installed once, in an environment of its own. The
    limit is a bare client that replays the commands of our own run.
    """
    from benchmarks.child import BenchFailed
    from benchmarks.run import choose
    from benchmarks.server import open_target

    if binary and redis_url:
        raise click.UsageError("--server and --redis-url name two servers; choose one")
    if redis_url and aof != "no":
        raise click.UsageError("--aof is for a server that is started, --redis-url names another")
    _refuse_unwritable(json_path)
    kept_in = out or (RESULTS if RESULTS.is_dir() and json_path is None else None)
    choice = choose([*named, *scenarios], peers, rounds=rounds, jobs=jobs, is_quick=is_quick)
    _refuse_unkept(kept_in)
    with ended_like_an_interrupt(), open_target(binary, redis_url, os.environ, aof) as target:
        document = _measure(choice, target)
    _show(document, json_path)
    _keep(document, kept_in)
    if document["failed"]:
        raise BenchFailed(f"not all could be measured: {', '.join(document['failed'])}")


def _measure(choice: Choice, target: Target) -> dict[str, Any]:
    from benchmarks.report import describe_machine, make_document, quiet_text
    from benchmarks.run import Whole

    machine = describe_machine()
    click.echo(clean(quiet_text(machine)), err=True)
    # Environments that are not there yet are made now, so that steps are known before they begin.
    whole = Whole(target, choice.bench, os.environ, choice.latency, choice.growth)
    with _progress(whole) as on_step:
        outcome = whole.run(on_step)
    return make_document(machine, target, choice.bench, outcome)


def _refuse_unwritable(json_path: Path | None) -> None:
    # Minutes of measuring must not end in a directory that is not there.
    if json_path is not None and not json_path.parent.is_dir():
        raise click.UsageError(f"--json needs a directory that exists, got {json_path.parent}")


def _refuse_unkept(out: Path | None) -> None:
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        # Rights alone do not decide: a disk may be full or read-only.
        with TemporaryFile(dir=out) as trial:
            trial.write(b"0")
    except OSError as error:
        raise click.UsageError(
            f"--out needs a directory that can be made and written to, got {out}: {error.strerror}"
        ) from None


@contextmanager
def _progress(whole: Whole) -> Generator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.description}"),
        console=console, transient=True, disable=not sys.stderr.isatty(),
    ) as bar:  # fmt: skip
        task = bar.add_task("starting", total=whole.step_count() + 1)
        yield lambda text: bar.update(task, description=text, advance=1)


def _show(document: dict[str, Any], json_path: Path | None) -> None:
    from benchmarks.tables import json_text, notes, tables, what_rows

    if json_path == Path("-"):
        emit_json(document)
        return
    if json_path is not None:
        json_path.write_text(json_text(document), "utf-8")
    for rows in (*tables(document), what_rows(document)):
        emit_table(rows, text=["what it measures"])
        click.echo()
    for line in notes(document):
        click.echo(clean(line))


def _keep(document: dict[str, Any], out: Path | None) -> None:
    if out is None:
        return
    from benchmarks.tables import keep

    written, why_no_charts = keep(document, out)
    click.echo(f"kept: {', '.join(map(str, written))}", err=True)
    if why_no_charts:
        click.echo(why_no_charts, err=True)
