"""Runs workers on Spark from the driver: submits the job, watches it, and submits it again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import uuid4

from pyspark.errors import PySparkException

from chasquimq.errors import SparkFailed, StoreError
from chasquimq.model.log import get_logger
from chasquimq.model.retry import doubled_ms
from chasquimq.spark.failures import JVM_GONE, first_line
from chasquimq.spark.workers.board import Board, Record
from chasquimq.spark.workers.hosting import host_worker, not_hosted, probe_executor, refuse_errors
from chasquimq.spark.workers.tally import Progress, Tally

if TYPE_CHECKING:
    from pyspark import SparkContext

    from chasquimq.spark.workers.settings import HostSettings, RunSettings

LOOK_S: Final = 0.5
# Tasks see the flag within a second, and need some more to report that they have ended.
STOP_GRACE_S: Final = 15.0
CANCEL_S_MAX: Final = 30.0
RESUBMIT_MS_MIN: Final = 1_000
RESUBMIT_MS_MAX: Final = 60_000
# A job that lived this long died of something new.
SETTLED_S: Final = 120.0

logger = get_logger(__name__)


class Stop(threading.Event):
    """Set to let a run end when its jobs have; urgent: cancel what still runs."""

    is_urgent = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """`is_drained`: every task ended by itself, so nothing waits for its lease to run out."""

    run: str
    submissions: int
    is_drained: bool
    progress: Progress


class WorkerRun:
    """Keeps so many tasks running until asked to stop; `on_progress` gets how it goes."""

    def __init__(
        self,
        context: SparkContext,
        settings: RunSettings,
        stop: Stop,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        host = settings.host
        self._context = context
        self._settings = settings
        self._stop = stop
        self._on_progress = on_progress
        self._board = Board(host.queue, host.connection, host.run)
        self._tally = Tally(settings.tasks, time.monotonic())
        self._submissions = 0
        self._deadline_s: float | None = None
        self._is_cut_off = False
        self._reported: dict[int, str] = {}

    def probe(self) -> None:
        """See whether executors can do it at all; ended early by a signal.

        Raises:
            ChasquiError: a handler, a package or the server is out of their reach.
        """
        job = JobBeside(self._context, probe_executor, self._settings.host, self._settings.tasks)
        while not job.wait(LOOK_S):
            if self._stop.is_set():
                job.cancel()
                job.wait(CANCEL_S_MAX)
                return
        if job.error is not None:
            raise not_hosted(job.error)
        refuse_errors(job.rows)

    def run(self) -> RunSummary:
        """Run until stopped; a job of Spark that failed is submitted again, ever more slowly."""
        self._tally = Tally(self._settings.tasks, time.monotonic())
        failures = 0
        while not self._stop.is_set():
            began_s = time.monotonic()
            job = self._watched()
            self._look()
            if job.error is None or self._stop.is_set():
                return self._summary(is_drained=job.error is None)
            failures = 1 if time.monotonic() - began_s > SETTLED_S else failures + 1
            self._pause(job.error, failures)
        return self._summary(is_drained=True)

    def close(self) -> None:
        """Forget the run and the consumers that its deaths left; the summary has all of it."""
        try:
            for record in self._tally.records():
                self._board.reap(record)
            self._board.clear()
        except StoreError:
            logger.debug("the notes of this run stay until they expire")
        self._board.close()

    def _watched(self) -> JobBeside[Record]:
        job = JobBeside(self._context, host_worker, self._settings.host, self._settings.tasks)
        self._submissions += 1
        while not job.wait(LOOK_S):
            self._look()
            if self._is_overdue:
                job.cancel()
                job.wait(CANCEL_S_MAX)
                return job
        return job

    def _look(self) -> None:
        """Beat, ask, report; a server that does not answer is asked again."""
        now_s = time.monotonic()
        if self._stop.is_set() and self._deadline_s is None:
            self._deadline_s = now_s + self._settings.stop_deadline_ms / 1000 + STOP_GRACE_S
        try:
            self._exchange(now_s)
            self._is_cut_off = False
        except StoreError as error:
            self._note_error(error)
        self._on_progress(self._tally.progress(now_s))

    def _exchange(self, now_s: float) -> None:
        self._board.open()
        if self._stop.is_set():
            self._board.stop()
        elif self._board.must_stop():
            logger.info("this run was asked to stop")
            self._stop.set()
        records = self._board.records()
        self._tally.note(records, now_s)
        self._report_failures(records)
        for record in self._tally.over(now_s):
            self._board.forget(record)
            self._board.reap(record)

    def _report_failures(self, records: Sequence[Record]) -> None:
        """Once for each task and reason: the same one may come every few seconds for hours."""
        for record in records:
            if record.error and self._reported.get(record.partition) != record.error:
                self._reported[record.partition] = record.error
                logger.warning(
                    "a task failed, Spark starts it again",
                    extra={"task": record.partition, "reason": record.error},
                )

    def _note_error(self, error: StoreError) -> None:
        if not self._is_cut_off:
            logger.warning("the server does not answer", extra={"error": str(error)})
        self._is_cut_off = True

    @property
    def _is_overdue(self) -> bool:
        if self._stop.is_urgent:
            return True
        return self._deadline_s is not None and time.monotonic() > self._deadline_s

    def _pause(self, error: Exception, failures: int) -> None:
        if _is_gone(self._context):
            raise SparkFailed(
                "Spark must live as long as its workers, but it is gone, and its tasks with it: "
                f"{first_line(error)}; start them again, what they ran comes back by itself"
            )
        pause_ms = resubmit_ms(failures) * random.uniform(0.5, 1)
        logger.warning(
            "the job of Spark failed, submitting it again",
            extra={"in_ms": int(pause_ms), "reason": first_line(error)},
        )
        self._stop.wait(pause_ms / 1000)

    def _summary(self, *, is_drained: bool) -> RunSummary:
        return RunSummary(
            run=self._settings.host.run,
            submissions=self._submissions,
            is_drained=is_drained,
            progress=self._tally.progress(time.monotonic()),
        )


def resubmit_ms(failures: int) -> float:
    """How long to wait after that many failed jobs in a row, before jitter."""
    return doubled_ms(failures, RESUBMIT_MS_MIN, RESUBMIT_MS_MAX)


def _is_gone(context: Any) -> bool:
    jsc = context._jsc  # noqa: SLF001  the one way to ask
    try:
        return jsc is None or bool(jsc.sc().isStopped())
    except JVM_GONE:
        return True


Row = TypeVar("Row")
Task = Callable[["HostSettings", int, Iterable[int]], Iterator[Row]]


class JobBeside(Generic[Row]):
    """One task for each partition; `rows` are what they yielded, `error` is why there are none."""

    def __init__(
        self, context: SparkContext, task: Task[Row], settings: HostSettings, tasks: int
    ) -> None:
        self.rows: list[Row] = []
        self.error: Exception | None = None
        self._context = context
        self._group = f"chasqui-{uuid4().hex[:12]}"
        self._title = f"{settings.target} for {settings.queue}"
        self._work: Any = partial(task, settings)
        self._tasks = tasks
        self._thread = threading.Thread(target=self._run, name=self._group, daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """True: the job is over."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Let Spark end the tasks; their processes are killed."""
        with suppress(*JVM_GONE):
            self._context.cancelJobGroup(self._group)

    def _run(self) -> None:
        try:
            # A group belongs to the thread that submits.
            self._context.setJobGroup(self._group, self._title)
            numbers = self._context.parallelize(range(self._tasks), self._tasks)
            self.rows = numbers.mapPartitionsWithIndex(self._work).collect()
        except (PySparkException, *JVM_GONE) as error:
            self.error = error
