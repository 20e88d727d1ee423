"""Finds the handler that was named, and runs it in this process until a signal."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from chasquimq.cli.context import reason_of_choice, refuse_wrong_types, run
from chasquimq.cli.output.render import clean, error_text, mask_secrets
from chasquimq.cli.service import exit_code_of, on_signals
from chasquimq.errors import NotSupportedError, SettingsError
from chasquimq.model.log import get_logger
from chasquimq.model.stop_signals import StopSignals
from chasquimq.server.finder import URL_VARIABLES
from chasquimq.telemetry.http import MetricsServer
from chasquimq.telemetry.sink import MetricsSink, QueueLabeled

if TYPE_CHECKING:
    from chasquimq.cli.service import Endpoint
    from chasquimq.telemetry.prometheus import PrometheusSink
    from chasquimq.worker.worker import Worker

# By the name that an error, or Worker, has for it.
OPTIONS = {
    "queue name": "--queue",
    "queue_name": "--queue",
    "group name": "--group",
    "group": "--group",
    "claim_min_idle_ms": "--lease",
    "shutdown_deadline_ms": "--deadline",
    "concurrency": "--concurrency",
    "max_attempts": "--max-attempts",
    "pool": "--pool",
    "store_results": "--store-results",
    "tracing": "--tracing",
}
# What is about the process and not about jobs, so that a Worker takes it, too.
PROCESS_OPTIONS = ("shutdown_deadline_ms", "tracing")
PACKAGE = Path(__file__).parents[2]
PLACES_MAX = 3
RULE = "a function, a dict of functions by job name, or a Worker"


def load_target(target: str) -> Any:
    """Import the attribute and check that it can be run; the current directory comes first."""
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise refusal(f"{target!r} must be module:attribute, as in tasks:send_email")
    module = _import(module_name)
    try:
        found: object = attrgetter(attribute)(module)
    except AttributeError:
        raise refusal(f"the module {module_name} has no {attribute!r}") from None
    except Exception as error:  # noqa: BLE001  a module's `__getattr__` may raise anything
        raise refusal(f"{target} cannot be had: {failure_text(error)}") from None
    if not (callable(found) or isinstance(found, Mapping) or is_worker(found)):
        raise refusal(f"{target} must be {RULE}, found {type(found).__name__}")
    return cast("Any", found)


def is_worker(found: object) -> bool:
    """Whether it brings its queue and its settings."""
    from chasquimq.worker.worker import Worker

    return isinstance(found, Worker)


def give_server(worker: Worker, redis_url: str, reason: str = "its URL was given") -> None:
    """Let a Worker dial what `--redis-url` says; one that names another server is wrong usage."""
    try:
        worker.use_server(redis_url, reason=reason)
    except SettingsError as refused:
        raise refusal(str(refused), of="--redis-url") from None


def take_process_options(
    worker: Worker,
    target: str,
    options: Mapping[str, Any],
    *,
    of: str = "MODULE:ATTRIBUTE",
    **more: Any,
) -> None:
    """Give a Worker what is about the process; an option about jobs is wrong usage."""
    given = dict(options)
    process = {name: given.pop(name) for name in PROCESS_OPTIONS if name in given}
    if given.get("queue_name") == worker.name:
        del given["queue_name"]
    if given:
        raise refusal(
            f"{target} is a Worker with settings of its own, so {_flags(given)} cannot be given "
            f"here; leave {'it' if len(given) == 1 else 'them'} out, or set "
            f"{'it' if len(given) == 1 else 'them'} where the Worker is made",
            of=of,
        )
    try:
        worker.use_process_options(**process, **more)
    except SettingsError as refused:
        raise setting_refusal(refused, target=of) from None


def _flags(given: Mapping[str, Any]) -> str:
    """The options as they are typed; a queue with its name, as it may be the wrong one."""
    flags = [
        f"--queue {value}" if name == "queue_name" else OPTIONS[name]
        for name, value in given.items()
    ]
    return " and ".join([", ".join(flags[:-1]), flags[-1]] if len(flags) > 1 else flags)


def refusal(why: str, *, of: str = "MODULE:ATTRIBUTE") -> click.BadParameter:
    """Wrong usage, in one line."""
    return click.BadParameter(" ".join(why.split()), param_hint=f"'{of}'")


def setting_refusal(refused: SettingsError, *, target: str) -> click.BadParameter:
    """The same for what a Worker refused: blames the option that set it, else the target."""
    return refusal(str(refused), of=OPTIONS.get(refused.name, target))


def _import(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise refusal(f"there is no module {missing.name!r} here or on PYTHONPATH") from None
        raise _failed(name, missing) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a user's module may raise anything
        raise _failed(name, error) from None


def _failed(name: str, error: BaseException) -> click.BadParameter:
    return refusal(f"importing {name} failed: {failure_text(error)}")


def failure_text(error: BaseException) -> str:
    """An error of a user's code, and the lines of their own files that led to it."""
    places = [f"{_near(frame.filename)}:{frame.lineno}" for frame in _own_frames(error)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append(f"{_near(error.filename)}:{error.lineno}")
    shown = dict.fromkeys(places[-PLACES_MAX:])
    return f"{error_text(error)} ({' > '.join(shown)})" if shown else error_text(error)


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    paths = sysconfig.get_paths()
    foreign = ("<", str(PACKAGE), *(paths[name] for name in ("stdlib", "purelib", "platlib")))
    own = [one for one in frames if _is_own(one.filename, foreign)]
    # Handlers may be installed like any package.
    return own or list(frames[-1:])


def _is_own(filename: str, foreign: tuple[str, ...]) -> bool:
    # Compiled modules name their sources by a path of the machine that compiled them.
    return filename.startswith("/") and not filename.startswith(foreign)


def _near(filename: str) -> str:
    """The path from here, where it is in this directory."""
    return filename.removeprefix(f"{Path.cwd()}/")


class WorkerPages:
    """The numbers of one process; a Worker that has a sink of its own reports to both."""

    def __init__(self, queue: str) -> None:
        self._prometheus = _new_prometheus_sink()
        self.sink: MetricsSink = QueueLabeled(self._prometheus, queue)

    async def open(self, worker: Worker, endpoint: Endpoint) -> MetricsServer:
        """Serve until the answer is stopped.

        Raises:
            StoreError: the address cannot be listened on.
        """
        server = MetricsServer(
            partial(self._page, worker),
            # Alive while this loop turns: a server that is down heals without a restart.
            is_healthy=lambda: True,
            is_ready=lambda: worker.health().is_ok,
            problems=lambda: list(map(mask_secrets, worker.health().problems)),
            host=endpoint.host,
            port=endpoint.port,
        )
        await endpoint.start(server)
        return server

    async def _page(self, worker: Worker) -> bytes:
        # Reported each second too, but a scrape should see how it is now. What the loop changes
        # is read on the loop; sums have a lock, and drawing them takes a thread's time.
        self.sink.worker_health(worker.health().record)
        return await asyncio.to_thread(self._prometheus.exposition)


def _new_prometheus_sink() -> PrometheusSink:
    try:
        from chasquimq.telemetry.prometheus import PrometheusSink, process_registry
    except ModuleNotFoundError as missing:
        raise NotSupportedError(
            f"--metrics-port needs the module {missing.name}, which is not installed; "
            "install it with pip install 'chasquimq-py[prometheus]'"
        ) from missing
    return PrometheusSink(registry=process_registry())


logger = get_logger(__name__)


class ForegroundWorker:
    """One worker, its signals, and its pages for scrapers.

    `options` are what was given on the command line, by the names that Worker knows.
    `redis_url` is the server that was named there, which a Worker may not contradict.
    `lifeline` is a pipe that closes when the process that started this one is gone.
    `wait_ms` is how long a server that is not there is waited for.
    """

    def __init__(
        self,
        target: str,
        options: Mapping[str, Any],
        *,
        redis_url: str | None = None,
        endpoint: Endpoint | None = None,
        lifeline: int | None = None,
        wait_ms: float = 0,
    ) -> None:
        self._target = target
        self._options = dict(options)
        self._redis_url = redis_url
        self._endpoint = endpoint
        self._lifeline = lifeline
        self._wait_ms = wait_ms
        self._pages: WorkerPages | None = None
        self._signals = StopSignals()

    def check(self) -> int:
        """Refuse a target or options that cannot be run; needs no server."""
        found = load_target(self._target)
        worker = self._worker(found)
        named = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else None
        runs = ", ".join(named) if named else self._target.partition(":")[2]
        click.echo(f"ok: {clean(runs)} on queue {clean(worker.name)}")
        return 0

    def run(self, find_server: Callable[[], str]) -> int:
        """Run until asked to stop; the answer is the exit code."""
        found = load_target(self._target)
        worker = self._worker(found)
        if self._redis_url is not None:
            # Queues of the target that name no server find the one of its worker.
            os.environ[URL_VARIABLES[0]] = self._redis_url
        # A Worker may know its server; a target that cannot be run needs none.
        url = None
        if worker.named_url is None:
            url = find_server()
            # A process of several got its server from its supervisor, which knows the reason.
            give_server(worker, url, "" if self._lifeline is not None else reason_of_choice())
            if not self._wait_ms:
                run(refuse_wrong_types([worker.name], url))
        # Not closed: closing waits for handlers that ignore their cancellation, and the
        # process is about to leave without them.
        _runner().run(self._run(worker, url))
        return exit_code_of(self._signals.number)

    def _worker(self, found: Any) -> Worker:
        if is_worker(found):
            return self._ready_made(found)
        if "queue_name" not in self._options:
            raise click.UsageError("--queue says whose jobs to run; only a Worker knows by itself.")
        return self._made(found)

    def _ready_made(self, worker: Worker) -> Worker:
        metrics = None
        if self._endpoint is not None:
            self._pages = _new_pages(worker.name)
            metrics = self._pages.sink
        take_process_options(worker, self._target, self._options, metrics=metrics)
        if self._redis_url is not None:
            give_server(worker, self._redis_url)
        return worker

    def _made(self, found: Any) -> Worker:
        from chasquimq.worker.worker import Worker

        options = dict(self._options)
        if self._endpoint is not None:
            self._pages = _new_pages(options["queue_name"])
            options["metrics"] = self._pages.sink
        try:
            return Worker(options.pop("queue_name"), found, **options)
        except SettingsError as refused:
            raise setting_refusal(refused, target="MODULE:ATTRIBUTE") from None

    async def _run(self, worker: Worker, url: str | None) -> None:
        on_signals(partial(self._stop, worker))
        self._watch_lifeline(worker)
        async with self._served(worker):
            # Probes are answered meanwhile: alive, and not ready.
            if self._wait_ms and not await self._has_waited(worker, url):
                return
            await worker.run()

    async def _has_waited(self, worker: Worker, url: str | None) -> bool:
        if not await worker.wait_for_server(self._wait_ms):
            return False
        if url is not None:
            await refuse_wrong_types([worker.name], url)
        return True

    @asynccontextmanager
    async def _served(self, worker: Worker) -> AsyncGenerator[None]:
        if self._pages is None or self._endpoint is None:
            yield
            return
        server = await self._pages.open(worker, self._endpoint)
        logger.info(
            "serving /metrics, /healthz and /readyz at http://%s:%d",
            self._endpoint.shown_host, server.port,
            extra={"host": self._endpoint.host, "port": server.port},
        )  # fmt: skip
        try:
            yield
        finally:
            await server.stop()

    def _stop(self, worker: Worker, number: int) -> None:
        asked = self._signals.note(number)
        if asked == "drain":
            logger.info("stopping when running jobs have ended")
            self._drain(worker)
        elif asked == "at_once":
            logger.warning("stopping at once: what still runs is given back")
            worker.request_stop()

    def _drain(self, worker: Worker) -> None:
        # The process that started this one may be gone and a signal come, too: that is one wish to stop.
        if not worker.is_closed:
            worker.request_stop()

    def _watch_lifeline(self, worker: Worker) -> None:
        if self._lifeline is None:
            return
        loop, pipe = asyncio.get_running_loop(), self._lifeline

        def end() -> None:
            loop.remove_reader(pipe)
            logger.warning("the process that started this worker is gone, stopping")
            self._drain(worker)

        loop.add_reader(pipe, end)


def _new_pages(queue: str) -> WorkerPages:

    return WorkerPages(queue)


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
