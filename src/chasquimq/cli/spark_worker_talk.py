"""What workers on Spark say: a moving line on a terminal, a plain one now and then in a pipe."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.render import emit_json_line, talk

if TYPE_CHECKING:
    from chasquimq.cli.pipeline_talk import Update
    from chasquimq.spark.workers.run import RunSummary
    from chasquimq.spark.workers.tally import Progress

LINE_EVERY_S = 10.0
# Below, a tenth of a job is worth telling.
_SLOW_JOBS_PER_S = 10


class ProgressTeller:
    """Tells how a run goes; in a pipe when tasks come and go, and every ten seconds."""

    def __init__(self, update: Update, *, as_json: bool) -> None:
        self._update = update
        self._as_json = as_json
        self._last: Progress | None = None
        # Looks of the last seconds, and one before them.
        self._looks: deque[Progress] = deque()

    def note(self, progress: Progress) -> None:
        self._looks.append(progress)
        while len(self._looks) > 2 and progress.seconds - self._looks[1].seconds >= LINE_EVERY_S:
            self._looks.popleft()
        self._update(progress_text(progress, _pace(progress, self._looks[0])))
        if self._is_due(progress):
            self._tell(progress, _pace(progress, self._last))
            self._last = progress

    def _is_due(self, progress: Progress) -> bool:
        last = self._last
        if last is None or progress.alive != last.alive:
            return True
        return progress.seconds - last.seconds >= LINE_EVERY_S

    def _tell(self, progress: Progress, jobs_per_s: float) -> None:
        if self._as_json:
            emit_json_line(progress_facts(progress, jobs_per_s))
        elif not sys.stderr.isatty():
            talk(progress_text(progress, jobs_per_s))
        sys.stdout.flush()


def progress_text(progress: Progress, jobs_per_s: float) -> str:
    """A run on a line."""
    again = progress.starts - progress.tasks
    return (
        f"{progress.alive:,} of {progress.tasks:,} tasks alive, "
        f"{_pace_text(jobs_per_s)}, {progress.completed:,} completed, "
        f"{progress.retried:,} retried, {progress.buried:,} dead, {progress.running:,} running"
        + (f"; {again:,} tasks were started again" if again > 0 else "")
    )


def progress_facts(progress: Progress, jobs_per_s: float) -> dict[str, Any]:
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
        "jobs_per_s": round(jobs_per_s, 1),
        "seconds": round(progress.seconds, 3),
        "cpu_s": round(progress.cpu_s, 3),
    }


def tell_summary(done: RunSummary, queue: str, *, as_json: bool) -> None:
    """The end of a run."""
    progress = done.progress
    if as_json:
        emit_json_line(
            {"queue": queue, "run": done.run, "submissions": done.submissions,
             "is_drained": done.is_drained, **progress_facts(progress, _pace(progress))}
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
        f"in {progress.seconds:,.1f} s ({_pace_text(_pace(progress))}) "
        f"by {progress.starts:,} starts of {progress.tasks:,} tasks"
    )


def _pace(progress: Progress, since: Progress | None = None) -> float:
    """Jobs completed a second, since then or since the run began."""
    completed = progress.completed - (since.completed if since else 0)
    seconds = progress.seconds - (since.seconds if since else 0.0)
    return completed / seconds if seconds > 0 else 0.0


def _pace_text(jobs_per_s: float) -> str:
    return f"{jobs_per_s:,.{1 if jobs_per_s < _SLOW_JOBS_PER_S else 0}f} jobs/s"
