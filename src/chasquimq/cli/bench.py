"""`chasqui bench`: this queue beside the original and beside what the server could do."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.bench.scenario import SCENARIOS
from chasquimq.cli.render import clean, emit_json, emit_table

if TYPE_CHECKING:
    from chasquimq.bench.rounds import Bench


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Choice(list(SCENARIOS)), metavar="[SCENARIO]...")
@click.option(
    "--server",
    "binary",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The server program to measure on.  [default: the one `chasqui server` starts]",
)
@click.option("--redis-url", help="Measure on this server instead; it must be empty.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds per side.  [default: 5, quick 3]")
@click.option("--jobs", type=click.IntRange(1), help="Jobs per measurement, in every scenario.")
@click.option("--quick", "is_quick", is_flag=True, help="Fewer jobs and rounds: under 2 minutes.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True, path_type=Path),
    help="Write everything to this file; - answers in JSON instead of a table.",
)
@click.option("--no-original", is_flag=True, help="Leave the original package out.")
def bench(
    scenarios: tuple[str, ...],
    binary: Path | None,
    redis_url: str | None,
    rounds: int | None,
    jobs: int | None,
    is_quick: bool,
    json_path: Path | None,
    no_original: bool,
) -> None:
    """Measure this queue beside its peers, and beside the limit.

    Scenarios: add, add-concurrent, add-bulk-50, add-bulk-50x8, add-bulk-1000, consume-100,
    consume-100-events, consume-100-history, consume-results, delayed-end-to-end,
    retry-throughput; all of them when none is named. The limit is a bare client that replays the
    commands of our own run.
    """
    from chasquimq.bench.machine import describe_machine, quiet_text
    from chasquimq.bench.peer import ORIGINALS
    from chasquimq.bench.report import make_document
    from chasquimq.bench.rounds import DEFAULT_ROUNDS, QUICK_ROUNDS, Bench, BenchSettings, sized
    from chasquimq.bench.target import open_target

    if binary and redis_url:
        raise click.UsageError("--server and --redis-url name two servers; choose one")
    _refuse_unwritable(json_path)
    settings = BenchSettings(
        scenarios=[sized(SCENARIOS[n], jobs, is_quick=is_quick) for n in scenarios or SCENARIOS],
        rounds=rounds or (QUICK_ROUNDS if is_quick else DEFAULT_ROUNDS),
        originals=() if no_original else ORIGINALS[:1] if is_quick else ORIGINALS,
    )
    machine = describe_machine()
    with _ended_like_an_interrupt(), open_target(binary, redis_url, os.environ) as target:
        click.echo(clean(quiet_text(machine)), err=True)
        prepared = Bench(target, settings, os.environ)
        with _progress(prepared) as on_step:
            measured = prepared.run(on_step)
        document = make_document(machine, target, settings, measured)
    _show(document, json_path)


def _refuse_unwritable(json_path: Path | None) -> None:
    # Minutes of measuring must not end in a directory that is not there.
    if json_path is not None and not json_path.parent.is_dir():
        raise click.UsageError(f"--json needs a directory that exists, got {json_path.parent}")


@contextmanager
def _ended_like_an_interrupt() -> Generator[None]:
    """A SIGTERM must end the measuring process and the server too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(prepared: Bench) -> Generator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("starting", total=prepared.step_count() + 1)
        yield lambda text: bar.update(task, description=text, advance=1)


def _show(document: dict[str, Any], json_path: Path | None) -> None:
    from chasquimq.bench.report import notes, table_rows

    if json_path == Path("-"):
        emit_json(document)
        return
    if json_path is not None:
        json_path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    emit_table(table_rows(document))
    for line in notes(document):
        click.echo(clean(line))
