"""`chasqui spark worker` and `stop`: runs jobs in tasks of Spark, and reports how it goes."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.context import (
    any_server,
    json_option,
    possible_queue,
    redis_url_option,
    refuse_wrong_types,
    run,
    running_server,
)
from chasquimq.cli.output.render import clean, emit_json, emit_json_line, talk
from chasquimq.cli.output.terminal import working
from chasquimq.cli.pipeline.options import DEFAULT_MASTER, conf_option, need, spark_session
from chasquimq.cli.service import Terminated, ended_like_an_interrupt, exit_code_of, start_logging
from chasquimq.cli.values import AT_LEAST_1, DURATION, WholeNumber
from chasquimq.cli.worker.foreground import (
    give_server,
    is_worker,
    load_target,
    refusal,
    setting_refusal,
    take_process_options,
)
from chasquimq.errors import SettingsError, StoreError
from chasquimq.model.stop_signals import StopSignals

if TYPE_CHECKING:
    from chasquimq.cli.output.terminal import Update
    from chasquimq.spark.workers.run import RunSummary, Stop
    from chasquimq.spark.workers.settings import HostSettings, RunSettings
    from chasquimq.spark.workers.tally import Progress
    from chasquimq.worker.worker import Worker

LINE_EVERY_S = 10.0
# Below, a tenth of a job is worth showing.
_SLOW_JOBS_PER_S = 10


class ProgressReporter:
    """Reports how a run goes; in a pipe when tasks come and go, and every ten seconds."""

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
            self._report(progress, _pace(progress, self._last))
            self._last = progress

    def _is_due(self, progress: Progress) -> bool:
        last = self._last
        if last is None or progress.alive != last.alive:
            return True
        return progress.seconds - last.seconds >= LINE_EVERY_S

    def _report(self, progress: Progress, jobs_per_s: float) -> None:
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


def report_summary(done: RunSummary, queue: str, *, as_json: bool) -> None:
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
            talk(f"`chasqui dlq triage {queue}` shows why jobs died")
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


NEEDED = ("pyspark",)
TASKS_MAX = 100_000
_CONNECT = "sc://"


def _no_connect(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if value.startswith(_CONNECT):
        raise click.BadParameter(
            "a master is needed, as workers are one long job of the driver, and a session of Spark "
            f"Connect cannot submit such a job; use local[n] or spark://host:port, got {value}"
        )
    return value


@click.command(epilog="Exit codes: 0 stopped, and all running jobs have ended; 1 not so; "
               "2 wrong usage; 130 stopped by Ctrl+C.")  # fmt: skip
@click.option("--queue", required=True, help="Whose jobs to run.")
@click.option("--handler", "target", required=True, metavar="MODULE:ATTRIBUTE",
              help="A function, a dict of functions by job name, or a Worker.")  # fmt: skip
@click.option("--tasks", type=WholeNumber(1, TASKS_MAX), default=2, show_default=True,
              help="Tasks of Spark, each with a worker.")  # fmt: skip
@click.option("--concurrency", type=AT_LEAST_1, help="Jobs at once in a task.  [default: 100]")
@click.option("--pool", type=click.Choice(["thread", "process"]),
              help="Where `def` handlers run.  [default: thread]")  # fmt: skip
@click.option("--group", help="The consumer group.  [default: default]")
@click.option("--max-attempts", type=AT_LEAST_1, help="Runs of a job at most.  [default: 25]")
@click.option("--lease", "claim_min_idle_ms", type=DURATION,
              help="How long a silent worker keeps its jobs.  [default: 30s]")  # fmt: skip
@click.option("--store-results", is_flag=True, default=None, help="Keep what handlers return.")
@click.option("--stop-deadline", "stop_deadline_ms", type=DURATION,
              help="How long running jobs may go on after a signal.  [default: 30s, or what a "
              "Worker says]")  # fmt: skip
@click.option("--py-files", multiple=True, metavar="PATH",
              help="Python files or archives for executors; may be given twice.")  # fmt: skip
@click.option("--master", default=DEFAULT_MASTER, show_default=True, callback=_no_connect,
              help="Spark's master: local[n], spark://…, yarn or k8s://…")  # fmt: skip
@conf_option
@redis_url_option
@json_option
def worker(
    *,
    queue: str,
    target: str,
    tasks: int,
    stop_deadline_ms: int | None,
    py_files: tuple[str, ...],
    master: str,
    conf: Mapping[str, str],
    redis_url: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Run the jobs of a queue in tasks of Spark, until a signal or `chasqui spark stop`.

    One job of Spark has a task for each worker; a task that dies is started again, and other
    workers take over its jobs. The first SIGTERM or Ctrl+C lets running jobs end, the second
    cancels the tasks.
    """
    need(NEEDED, "spark worker")
    from chasquimq.spark.workers.settings import RunSettings, workers_conf, workers_master

    start_logging("warning", as_json=as_json)
    options = {name: value for name, value in given.items() if value is not None}
    master = workers_master(master, tasks)
    _refuse_missing(py_files)
    host = _host(queue, target, options, stop_deadline_ms, redis_url)
    settings = RunSettings(
        host=host, tasks=tasks, stop_deadline_ms=host.options["shutdown_deadline_ms"]
    )
    try:
        with (
            ended_like_an_interrupt(),
            spark_session(master, workers_conf(conf)) as session,
            _until_signal() as (stop, signals),
        ):
            done = _run(session.sparkContext, settings, stop, py_files, as_json=as_json)
    except Terminated:
        # Before the first task there is nothing to finish, and nothing to report.
        return exit_code_of(signal.SIGTERM)
    report_summary(done, queue, as_json=as_json)
    return exit_code_of(signals.number) if done.is_drained else 1


@click.command()
@click.option("--queue", required=True, callback=possible_queue, help="Whose workers to stop.")
@redis_url_option
@json_option
def stop(*, queue: str, redis_url: str | None, as_json: bool) -> int:
    """Let every `chasqui spark worker` of a queue end when its running jobs have."""
    from chasquimq.settings import ConnectionSettings
    from chasquimq.spark.workers.board import stop_runs

    url = running_server(redis_url)
    runs = stop_runs(queue, ConnectionSettings(url=url, queue=queue))
    if as_json:
        emit_json({"queue": queue, "runs": runs})
    elif runs:
        click.echo(clean(f"asked to stop: {', '.join(runs)}"))
    else:
        talk(f"no workers of {queue} run on Spark")
    return 0 if runs else 1


def _refuse_missing(files: tuple[str, ...]) -> None:
    for path in files:
        if "://" not in path and not Path(path).exists():
            raise StoreError(f"{path} must be there, and is not; look at the path")


def _host(
    queue: str, target: str, options: dict[str, Any], deadline_ms: int | None, redis_url: str | None
) -> HostSettings:
    """What tasks are given; what cannot be run is refused before Spark starts."""
    from chasquimq.spark.workers.settings import STOP_DEADLINE_MS, HostSettings

    made = _ready_made(queue, target, options)
    if deadline_ms is None:
        deadline_ms = STOP_DEADLINE_MS if made is None else made.shutdown_deadline_ms
    if made is not None and redis_url is not None:
        give_server(made, redis_url)
    url = (made and made.named_url) or any_server(redis_url)
    run(refuse_wrong_types([queue], url))
    return HostSettings(
        queue=queue,
        target=target,
        url=url,
        options={**options, "shutdown_deadline_ms": deadline_ms},
        folder=os.getcwd(),  # noqa: PTH109  as text, for other processes
    )


def _ready_made(queue: str, target: str, options: dict[str, Any]) -> Worker | None:
    """Import and make it here, as every task will; the target itself where it is a Worker."""
    from chasquimq.worker.worker import Worker

    try:
        found = load_target(target)
    except click.BadParameter as refused:
        raise _refusal(refused.message) from None
    if not is_worker(found):
        try:
            Worker(queue, found, **options)
        except SettingsError as refused:
            raise setting_refusal(refused, target="--handler") from None
        return None
    take_process_options(found, target, options, of="--handler")
    if found.name != queue:
        raise _refusal(f"{target} is a Worker of the queue {found.name!r}, --queue says {queue!r}")
    return found


def _refusal(why: str) -> click.BadParameter:
    return refusal(why, of="--handler")


def _run(
    context: Any, settings: RunSettings, stop: Stop, py_files: tuple[str, ...], *, as_json: bool
) -> RunSummary:
    from chasquimq.spark.workers.run import WorkerRun
    from chasquimq.spark.workers.shipping import ship

    ship(context, settings.host.target, py_files, Path(settings.host.folder))
    with working("waiting for executors") as say:
        workers = WorkerRun(context, settings, stop, ProgressReporter(say, as_json=as_json).note)
        try:
            workers.probe()
            return workers.run()
        finally:
            workers.close()


@contextmanager
def _until_signal() -> Generator[tuple[Stop, StopSignals]]:
    """Spark handles Ctrl+C, too, and would cancel every task: the last handler wins."""
    from chasquimq.spark.workers.run import Stop

    stop, signals = Stop(), StopSignals()

    def note(number: int, _frame: object) -> None:
        stop.is_urgent |= signals.note(number) == "at_once"
        stop.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop, signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
