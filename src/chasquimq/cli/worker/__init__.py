"""`chasqui worker`: runs handlers from the shell, in this process or in several that it keeps alive."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from chasquimq.cli.app import report_failure
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
from chasquimq.cli.interrupts import EXIT_INTERRUPTED
from chasquimq.cli.output.render import mask_url, talk
from chasquimq.cli.service import (
    HOST,
    LEVELS,
    LOOPBACK,
    Endpoint,
    exit_code_of,
    on_signals,
    start_logging,
)
from chasquimq.cli.values import (
    AT_LEAST_1,
    DURATION,
    PATIENCE,
    PORT_OR_ANY,
    WholeNumber,
    patience_words,
)
from chasquimq.cli.worker.foreground import failure_text
from chasquimq.errors import EXIT_FAILED, EXIT_USAGE, ChasquiError, ConnectionLost, GroupConflict
from chasquimq.model.log import get_logger
from chasquimq.model.retry import doubled_ms
from chasquimq.model.stop_signals import ECHO_S, StopSignals
from chasquimq.telemetry.tracing import flush_spans

logger = get_logger(__name__)
PROCESSES_MAX = 256
FLUSH_SPANS_S = 5.0
# Child processes get the server by environment: a command line can be read by everyone.
URL_VARIABLE = "CHASQUI_REDIS_URL"
# And so does the process that checks for them what `--redis-url` said, which a Worker may contradict.
GIVEN_URL_VARIABLE = "CHASQUI_GIVEN_URL"
FOR_THE_FLEET = (
    "processes", "metrics_port", "metrics_host", "redis_url", "redis_url_file", "lifeline",
)  # fmt: skip
# How a child says that another consumer group has the queue; the answer of the fleet is 1.
EXIT_GROUP_CONFLICT = 3
RESTART_MS_MIN = 200
RESTART_MS_MAX = 30_000
# A child that lived this long died of something new.
SETTLED_S = 60.0


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
    from chasquimq.cli.worker.foreground import ForegroundWorker

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
    # The supervisor of several processes has reported it already.
    is_alone = lifeline is None
    exit_code = _exit_code(lambda: one.run(lambda: any_server(redis_url, is_reported=is_alone)))
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
        return report_failure(refused)
    except GroupConflict as refused:
        report_failure(refused)
        return EXIT_GROUP_CONFLICT
    except ChasquiError as failed:
        # Not as wrong usage, after which no supervisor starts it again: the next start may do.
        report_failure(failed)
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
    environ_of_check = os.environ | ({GIVEN_URL_VARIABLE: redis_url} if redis_url else {})
    # A group of its own: Ctrl+C is answered here, once.
    refused = subprocess.run(
        [*command, "--check"],
        check=False,
        env=environ_of_check,
        process_group=0,
        stdout=subprocess.DEVNULL,
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
            words += [option.opts[0], *([] if option.is_flag else [_option_text(option, ctx)])]
    return words


def _option_text(option: click.Option, ctx: click.Context) -> str:
    value = ctx.params[option.name or ""]
    if option.type is PATIENCE:
        return patience_words(value)
    return f"{value}ms" if option.type is DURATION else str(value)


def restart_ms(deaths: int) -> float:
    """How long to wait after that many deaths in a row, before jitter."""
    return doubled_ms(deaths, RESTART_MS_MIN, RESTART_MS_MAX)


class WorkerFleet:
    """So many processes; `command` makes the command line of each from its number and a pipe.

    The pipe is a file descriptor whose end a child sees when this process is gone, whatever
    ended it.
    """

    def __init__(
        self, size: int, command: Callable[[int, int], Sequence[str]], environ: dict[str, str]
    ) -> None:
        self._size = size
        self._command = command
        self._environ = environ
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._signals = StopSignals()
        self._exit_code = 0
        self._lifeline, self._held = os.pipe()

    async def run(self) -> int:
        """Run until every child has ended after a signal; the answer is the exit code."""
        on_signals(self._on_signal)
        async with asyncio.TaskGroup() as keeping:
            for number in range(self._size):
                keeping.create_task(self._keep(number), name=f"chasqui-child-{number}")
        if self._exit_code:
            return self._exit_code
        return exit_code_of(self._signals.number)

    async def _keep(self, number: int) -> None:
        loop, deaths = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            started_s = loop.time()
            exit_code = await self._live(number)
            if self._stopping.is_set():
                self._note_end(exit_code)
                return
            if exit_code in (EXIT_USAGE, EXIT_GROUP_CONFLICT):
                self._give_up(EXIT_USAGE if exit_code == EXIT_USAGE else EXIT_FAILED)
                return
            deaths = 1 if loop.time() - started_s > SETTLED_S else deaths + 1
            await self._pause(number, exit_code, restart_ms(deaths) * random.uniform(0.5, 1))

    async def _live(self, number: int) -> int:
        """Start a child and wait for its end; the answer is its exit code."""
        try:
            child = await self._start(number)
        except OSError as error:
            # No memory, or no process more: that passes, and the other children go on.
            logger.warning(
                "worker process %d could not be started: %s", number, error,
                extra={"number": number},
            )  # fmt: skip
            return EXIT_FAILED
        self._children[number] = child
        if self._stopping.is_set():
            _end(child)
        logger.info(
            "worker process %d started (pid %d)", number, child.pid,
            extra={"number": number, "pid": child.pid},
        )  # fmt: skip
        exit_code = await child.wait()
        del self._children[number]
        return exit_code

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        command = self._command(number, self._lifeline)
        # A group of its own: Ctrl+C reaches this process, which passes it on exactly once.
        return await asyncio.create_subprocess_exec(
            *command, env=self._environ, pass_fds=[self._lifeline], process_group=0,
            stdin=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def _pause(self, number: int, exit_code: int, pause_ms: float) -> None:
        logger.warning(
            "worker process %d died with exit code %d, starting another in %.1f s",
            number, exit_code, pause_ms / 1000,
            extra={"number": number, "exit_code": exit_code, "in_ms": int(pause_ms)},
        )  # fmt: skip
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _on_signal(self, number: int) -> None:
        # Echoes, too: each child distinguishes them from a second signal by itself.
        self._forward()
        if self._signals.note(number) == "at_once":
            # A child that got the first one late takes this one for its echo.
            asyncio.get_running_loop().call_later(ECHO_S, self._forward)

    def _forward(self) -> None:
        self._stopping.set()
        for child in self._children.values():
            _end(child)

    def _give_up(self, exit_code: int) -> None:
        # It said why, and would say so again for ever.
        self._exit_code = exit_code
        self._forward()

    def _note_end(self, exit_code: int) -> None:
        # A child that was still starting knows no signals yet, and held nothing.
        well = (0, EXIT_INTERRUPTED, EXIT_GROUP_CONFLICT, -signal.SIGTERM, -signal.SIGINT)
        if exit_code not in well:
            logger.error(
                "a worker process did not end well: exit code %d", exit_code,
                extra={"exit_code": exit_code},
            )  # fmt: skip
            self._exit_code = self._exit_code or EXIT_FAILED


def _end(child: asyncio.subprocess.Process) -> None:
    """Pass a signal on; a child that has just ended must not keep it from the next one.

    Always SIGTERM: an interpreter that is still starting ends at an interrupt with a traceback and
    code 1, as if it had failed. Not by the child's own method: that one reaps who is dead, and the
    exit code is lost.
    """
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
