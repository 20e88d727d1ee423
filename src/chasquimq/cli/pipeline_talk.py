"""What a pipeline says while it works: a moving line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.duration import duration_text
from chasquimq.cli.render import emit_json, emit_json_line

if TYPE_CHECKING:
    from chasquimq.spark.pipeline_settings import BatchReport, PipelineRun

Update = Callable[[str], None]


@contextmanager
def working(what: str) -> Generator[Update]:
    """A line on a terminal that moves until the work is done, and is gone then."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …") as status:
        yield status.update


class BatchTeller:
    """Tells of each batch that was committed."""

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


def _ignore(_text: str) -> None:
    """Nobody watches."""
