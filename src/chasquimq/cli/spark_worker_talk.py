"""What workers on Spark say: a moving line on a terminal, a plain one now and then in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.render import emit_json_line, talk

if TYPE_CHECKING:
    from chasquimq.cli.pipeline_talk import Update
    from chasquimq.spark.workers.run import RunSummary
    from chasquimq.spark.workers.tally import Progress

LINE_EVERY_S = 10.0


class ProgressTeller:
    """Tells how a run goes; in a pipe when tasks come and go, and every ten seconds."""

    def __init__(self, update: Update, *, as_json: bool) -> None:
        self._update = update
        self._as_json = as_json
        self._next_s = 0.0
        self._alive: int | None = None

    def note(self, progress: Progress) -> None:
        self._update(progress_text(progress))
        if time.monotonic() < self._next_s and progress.alive == self._alive:
            return
        self._next_s, self._alive = time.monotonic() + LINE_EVERY_S, progress.alive
        if self._as_json:
            emit_json_line(progress_facts(progress))
        elif not sys.stderr.isatty():
            talk(progress_text(progress))
        sys.stdout.flush()


def progress_text(progress: Progress) -> str:
    """A run on a line."""
    again = progress.starts - progress.tasks
    return (
        f"{progress.alive:,} of {progress.tasks:,} tasks alive, "
        f"{progress.jobs_per_s:,.0f} jobs/s, {progress.completed:,} completed, "
        f"{progress.retried:,} retried, {progress.buried:,} dead, {progress.running:,} running"
        + (f"; {again:,} tasks were started again" if again > 0 else "")
    )


def progress_facts(progress: Progress) -> dict[str, Any]:
    """A run for programs."""
    return {
        "alive": progress.alive,
        "tasks": progress.tasks,
        "starts": progress.starts,
        "completed": progress.completed,
        "failed": progress.failed,
        "retried": progress.retried,
        "dead": progress.buried,
        "handed_back": progress.handed_back,
        "leases_lost": progress.leases_lost,
        "running": progress.running,
        "jobs_per_s": round(progress.jobs_per_s, 1),
        "seconds": round(progress.seconds, 3),
        "cpu_s": round(progress.cpu_s, 3),
    }


def tell_summary(done: RunSummary, queue: str, *, as_json: bool) -> None:
    """The end of a run."""
    progress = done.progress
    if as_json:
        facts = {**progress_facts(progress), "jobs_per_s": round(_pace(progress), 1)}
        emit_json_line(
            {"queue": queue, "run": done.run, "submissions": done.submissions,
             "is_drained": done.is_drained, **facts}
        )  # fmt: skip
    else:
        click.echo(summary_text(done))
        if progress.buried:
            talk(f"`chasqui dlq triage {queue}` tells why jobs died")
    if not done.is_drained:
        talk("tasks were cancelled; jobs that they held come back when their leases have run out")


def summary_text(done: RunSummary) -> str:
    """A whole run in a sentence."""
    progress = done.progress
    return (
        f"{progress.completed:,} completed, {progress.retried:,} retried, {progress.buried:,} dead "
        f"in {progress.seconds:,.1f} s ({_pace(progress):,.0f} jobs/s) "
        f"by {progress.starts:,} starts of {progress.tasks:,} tasks"
    )


def _pace(progress: Progress) -> float:
    return progress.finished / max(progress.seconds, 0.001)
