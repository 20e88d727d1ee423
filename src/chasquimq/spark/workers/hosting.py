"""Runs in the tasks of Spark: probes whether a worker can run there, and hosts one."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

from chasquimq.errors import (
    ChasquiError,
    NotSupportedError,
    SettingsError,
    SparkFailed,
    StoreError,
)
from chasquimq.model.log import get_logger
from chasquimq.model.retry import doubled_ms
from chasquimq.server.finder import URL_VARIABLES
from chasquimq.spark.failures import first_line
from chasquimq.spark.workers.board import Board, Record
from chasquimq.worker.worker import Worker

if TYPE_CHECKING:
    from chasquimq.spark.workers.settings import HostSettings

BEAT_S: Final = 1.0
RESTART_MS_MIN: Final = 200
RESTART_MS_MAX: Final = 5_000
ERROR_LENGTH_MAX: Final = 300
_COUNTERS: Final = (
    "completed", "failed", "retried", "buried", "handed_back", "leases_lost", "running",
)  # fmt: skip

logger = get_logger(__name__)
_IMPORT_FAILED = re.compile(r"^(?:ModuleNotFoundError|ImportError): (?P<what>.+)$", re.MULTILINE)


def host_worker(settings: HostSettings, partition: int, _rows: Iterable[int]) -> Iterator[Record]:
    """Run a worker in this task; what it did is the task's one row."""
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    # Attempts are numbered through the whole application: no two of them share a name or a note.
    host = Host(settings, Record(partition=partition, attempt=context.taskAttemptId()))
    # Not closed: closing waits for handlers that ignore their cancellation, and the process
    # is about to leave without them.
    yield _runner().run(host.run(context.attemptNumber()))


class Host:
    """One worker, its notes on the board, and the flag that stops it."""

    def __init__(self, settings: HostSettings, record: Record) -> None:
        self._settings = settings
        self._record = record
        self._board = Board(settings.queue, settings.connection, settings.run)
        self._ended = asyncio.Event()
        record.consumer = consumer_name(settings.run, record.attempt)

    async def run(self, deaths: int) -> Record:
        """Run until the flag is there; after deaths of this task, begin a little later."""
        await asyncio.sleep(restart_ms(deaths) * random.uniform(0.5, 1) / 1000)
        try:
            if not await self._noted():
                await self._work(new_worker(self._settings, self._record.consumer))
        except Exception as error:
            # Spark keeps it to itself as long as it starts the task again.
            self._record.error = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
            raise
        finally:
            self._record.has_ended = True
            await self._noted()
            self._board.close()
        return self._record

    async def _work(self, worker: Worker) -> None:
        self._record.group = worker.group
        beating = asyncio.create_task(self._beat(worker), name="chasqui-spark-beat")
        try:
            await worker.run()
        finally:
            self._ended.set()
            await beating
        self._count(worker)

    async def _beat(self, worker: Worker) -> None:
        while not self._ended.is_set():
            self._count(worker)
            if await self._noted() and not worker.is_closed:
                logger.info("stopping when running jobs have ended")
                worker.request_stop()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), BEAT_S)

    async def _noted(self) -> bool:
        """Write the record; True: the flag is there. Who cannot ask goes on."""
        try:
            return await asyncio.to_thread(self._board.note, self._record)
        except StoreError as error:
            logger.debug("the notes of this run cannot be reached", extra={"error": str(error)})
            return False

    def _count(self, worker: Worker) -> None:
        health, record = worker.health(), self._record
        for name in _COUNTERS:
            setattr(record, name, getattr(health, name))
        record.cpu_s = time.process_time()
        record.beat += 1


def consumer_name(run: str, attempt: int) -> str:
    """A name that no other worker has, with the place to look for it."""
    return f"{socket.gethostname()}-{os.getpid()}-spark.{run}.{attempt}"


def restart_ms(deaths: int) -> float:
    """How long a task waits that died so often; Spark itself starts it again at once."""
    if deaths == 0:
        return 0
    return doubled_ms(deaths, RESTART_MS_MIN, RESTART_MS_MAX)


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def new_worker(settings: HostSettings, consumer_id: str) -> Worker:
    """The worker of a task; a target that is a Worker keeps its settings about jobs.

    One that names no server dials the one that the run was given.
    """
    found = find_target(settings)
    # Queues of the target that name no server find the one of the run.
    os.environ[URL_VARIABLES[0]] = settings.url
    if not isinstance(found, Worker):
        options: dict[str, Any] = {"redis_url": settings.url, **settings.options}
        return Worker(settings.queue, found, consumer_id=consumer_id, **options)
    if found.is_closed:
        raise SettingsError(
            "spark.python.worker.reuse", "true", "false for a handler that is a Worker",
            hint="a Worker runs once, so each task needs a process of its own",
        )  # fmt: skip
    if found.named_url is None:
        found.use_server(settings.url)
    found.use_process_options(**settings.options)
    found.consumer_id = consumer_id
    return found


def find_target(settings: HostSettings) -> Any:
    """Import what `module:attribute` names."""
    if settings.folder and settings.folder not in sys.path:
        sys.path.insert(0, settings.folder)
    module, _, attribute = settings.target.partition(":")
    return attrgetter(attribute)(import_module(module))


def probe_executor(
    settings: HostSettings, _partition: int, _rows: Iterable[int]
) -> Iterator[str | None]:
    """Yield what keeps a worker from running in this executor, in a sentence."""
    yield _handler_error(settings) or _server_error(settings)


def refuse_errors(errors: Iterable[str | None]) -> None:
    """Raise the first sentence there is."""
    for error in filter(None, errors):
        raise NotSupportedError(error)


def not_hosted(error: Exception) -> ChasquiError:
    """Why not even the question could be asked."""
    found = _IMPORT_FAILED.findall(str(error))
    if found:
        return NotSupportedError(
            f"executors must be able to import chasquimq and what it needs: {found[-1].strip()}; "
            "install chasquimq-py for their Python, or name one that has it by PYSPARK_PYTHON"
        )
    return SparkFailed(
        f"Spark must be able to run a first task, but said: {first_line(error)}; look at its "
        "master and the logs of its executors"
    )


def _handler_error(settings: HostSettings) -> str | None:
    try:
        new_worker(settings, "probe")
    except SettingsError as refused:
        return str(refused)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's module may raise anything
        return (
            f"executors must be able to import {settings.target}, but {socket.gethostname()} "
            f"cannot: {type(error).__name__}: {error}; give its files with --py-files"
        )
    return None


def _server_error(settings: HostSettings) -> str | None:
    board = Board(settings.queue, settings.connection, settings.run)
    try:
        board.ping()
    except StoreError as error:
        return f"executors must reach the server, but {socket.gethostname()} cannot: {error}"
    finally:
        board.close()
    return None
