"""A job of Spark that runs in a thread of its own, so that somebody can watch and cancel it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

from pyspark.errors import PySparkException

from chasquimq.spark.failures import JVM_GONE

if TYPE_CHECKING:
    from pyspark import SparkContext

    from chasquimq.spark.workers.settings import HostSettings

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
