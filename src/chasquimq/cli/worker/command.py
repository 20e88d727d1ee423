"""`chasqui worker`: runs your handlers, in one process or in many."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from chasquimq.cli.app import EXIT_FAILED, tell_failure
from chasquimq.cli.context import (
    DEFAULT_GROUP,
    any_server,
    reason_of_choice,
    redis_url_option,
    refuse_other_groups,
    refuse_wrong_types,
    run,
    wait_for_server_option,
)
from chasquimq.cli.endpoint import HOST, LOOPBACK, Endpoint
from chasquimq.cli.logs import LEVELS, start_logging
from chasquimq.cli.output.render import mask_url, talk
from chasquimq.cli.values import (
    AT_LEAST_1,
    DURATION,
    PATIENCE,
    PORT_OR_ANY,
    WholeNumber,
    patience_words,
)
from chasquimq.cli.worker.fleet import EXIT_GROUP_CONFLICT
from chasquimq.cli.worker.run import failure_text
from chasquimq.errors import ChasquiError, ConnectionLost, GroupConflict
from chasquimq.model.log import get_logger
from chasquimq.telemetry.tracing import flush_spans

logger = get_logger(__name__)
PROCESSES_MAX = 256
FLUSH_SPANS_S = 5.0
# Child processes are told the server by environment: a command line can be read by everyone.
URL_VARIABLE = "CHASQUI_REDIS_URL"
# And so is whoever checks for them what `--redis-url` said, which a Worker may contradict.
GIVEN_URL_VARIABLE = "CHASQUI_GIVEN_URL"
FOR_THE_FLEET = (
    "processes", "metrics_port", "metrics_host", "redis_url", "redis_url_file", "lifeline",
)  # fmt: skip


@click.command()
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@click.option("--queue", "queue_name", metavar="QUEUE", help="Whose jobs to run.")
@click.option("--concurrency", type=AT_LEAST_1, help="Jobs at once.  [default: 100]")
@click.option(
    "--processes",
    type=WholeNumber(1, PROCESSES_MAX),
    default=1,
    show_default=True,
    help="Worker processes; one that dies is started again.",
)
@click.option(
    "--pool",
    type=click.Choice(["thread", "process"]),
    help="Where `def` handlers run.  [default: thread]",
)
@click.option("--group", help="The consumer group.  [default: default]")
@click.option("--max-attempts", type=AT_LEAST_1, help="Runs of a job at most.  [default: 25]")
@click.option(
    "--lease",
    "claim_min_idle_ms",
    type=DURATION,
    help="How long a silent worker keeps its jobs.  [default: 30s]",
)
@click.option(
    "--deadline",
    "shutdown_deadline_ms",
    type=DURATION,
    help="How long running jobs may go on after a signal.  [default: 30s]",
)
@click.option("--store-results", is_flag=True, default=None, help="Keep what handlers return.")
@click.option(
    "--metrics-port",
    type=PORT_OR_ANY,
    help="Serve /metrics, /healthz and /readyz on this port; further processes on the next ones.",
)
@click.option(
    "--metrics-host",
    type=HOST,
    metavar="ADDRESS",
    help="Where --metrics-port listens.  [default: 127.0.0.1]",
)
@click.option(
    "--tracing", is_flag=True, default=None, help="Open an OpenTelemetry span for each run."
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What to log."
)
@wait_for_server_option
@click.option("--check", "is_check", is_flag=True, help="Only see whether all this can be run.")
@click.option("--lifeline", type=int, hidden=True)
@redis_url_option
@click.option("--json", "as_json", is_flag=True, help="Log in JSON, a document a line.")
def worker(
    target: str,
    *,
    processes: int,
    metrics_port: int | None,
    metrics_host: str | None,
    log_level: str,
    wait_ms: float,
    is_check: bool,
    lifeline: int | None,
    redis_url: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Run the jobs of a queue with a handler of yours, until a signal.

    MODULE:ATTRIBUTE is a function, a dict of functions by job name, or a Worker. The first
    SIGTERM or Ctrl+C lets running jobs end, the second gives them back at once.
    """
    from chasquimq.cli.worker.run import ForegroundWorker

    start_logging(log_level, as_json=as_json)
    options = {name: value for name, value in given.items() if value is not None}
    endpoint = _endpoint(metrics_host, metrics_port)
    given_url = redis_url or (os.environ.get(GIVEN_URL_VARIABLE) if is_check else None)
    one = ForegroundWorker(
        target, options, redis_url=given_url, endpoint=endpoint, lifeline=lifeline, wait_ms=wait_ms
    )
    if is_check:
        return _exit_code(one.check)
    if processes > 1:
        return _run_fleet(processes, endpoint, redis_url)
    # Who watches several processes has told already.
    is_alone = lifeline is None
    exit_code = _exit_code(lambda: one.run(lambda: any_server(redis_url, is_told=is_alone)))
    return _leave(EXIT_FAILED if is_alone and exit_code == EXIT_GROUP_CONFLICT else exit_code)


def _endpoint(host: str | None, port: int | None) -> Endpoint | None:
    if port is not None:
        return Endpoint(host or LOOPBACK, port, "--metrics-")
    if host is not None:
        raise click.UsageError("--metrics-host says where --metrics-port listens; give both.")
    return None


def _exit_code(work: Callable[[], int]) -> int:
    try:
        return work()
    except click.ClickException as refused:
        return tell_failure(refused)
    except GroupConflict as refused:
        tell_failure(refused)
        return EXIT_GROUP_CONFLICT
    except ChasquiError as failed:
        # Not as wrong usage, after which nobody starts it again: the next start may do.
        tell_failure(failed)
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001  a hook at startup may raise anything
        talk(f"error: the worker ended: {failure_text(error)}")
        return EXIT_FAILED


def _leave(exit_code: int) -> NoReturn:
    # A handler stuck in a thread must not hold the process: its job was given back already.
    flush_spans(FLUSH_SPANS_S)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _run_fleet(processes: int, endpoint: Endpoint | None, redis_url: str | None) -> int:
    command = [sys.executable, "-m", "chasquimq", *_repeated(click.get_current_context())]
    # In a process of its own: what handlers import has no business in the one that only watches.
    told = os.environ | ({GIVEN_URL_VARIABLE: redis_url} if redis_url else {})
    # A group of its own: Ctrl+C is answered here, once.
    refused = subprocess.run(
        [*command, "--check"], check=False, env=told, process_group=0, stdout=subprocess.DEVNULL
    ).returncode
    if refused:
        return refused
    if endpoint is not None:
        # Said here once; the processes would say it again with every restart.
        run(endpoint.check_host())
    url = any_server(redis_url)
    given = click.get_current_context().params
    queue: str | None = given["queue_name"]
    # A server that is not there yet is waited for; a key of the wrong type is not.
    with suppress(ConnectionLost):
        run(refuse_wrong_types([queue] if queue else [], url))
        if queue:
            run(refuse_other_groups(queue, given["group"] or DEFAULT_GROUP, url))
    logger.info(
        "starting %d worker processes on %s (%s)", processes, mask_url(url), reason_of_choice()
    )
    environ = os.environ | {URL_VARIABLE: url}
    return asyncio.run(_keep_fleet(processes, command, endpoint, environ))


async def _keep_fleet(
    processes: int, command: list[str], endpoint: Endpoint | None, environ: dict[str, str]
) -> int:
    from chasquimq.cli.worker.fleet import WorkerFleet

    def child(number: int, lifeline: int) -> list[str]:
        place = [] if endpoint is None else _words(endpoint.of_process(number))
        return [*command, *place, "--lifeline", f"{lifeline}"]

    return await WorkerFleet(processes, child, environ).run()


def _words(endpoint: Endpoint) -> list[str]:
    return ["--metrics-host", endpoint.host, "--metrics-port", f"{endpoint.port}"]


def _repeated(ctx: click.Context) -> list[str]:
    """The command line of one process, as it was given to us."""
    words = ["worker", ctx.params["target"]]
    for option in ctx.command.params:
        name = option.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if isinstance(option, click.Option) and is_given and name not in FOR_THE_FLEET:
            words += [option.opts[0], *([] if option.is_flag else [_spelled(option, ctx)])]
    return words


def _spelled(option: click.Option, ctx: click.Context) -> str:
    value = ctx.params[option.name or ""]
    if option.type is PATIENCE:
        return patience_words(value)
    return f"{value}ms" if option.type is DURATION else str(value)
