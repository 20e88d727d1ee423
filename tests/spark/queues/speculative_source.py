"""The sink on a real cluster: a task waits for its speculative copy, then one of them is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from chasquimq.spark.queues.rows import layout_of
from chasquimq.spark.queues.sink import QueueWriter
from chasquimq.spark.queues.source import QueueSource
from support.row_storm import PARTITIONS, shuffled, stopping
from support.spark_cluster import is_running

FOLDER = "CHASQUI_TEST_RUNS"
_WAIT_S_MAX = 240.0
# This one takes its executor along, and with it what the shuffle wrote there.
_LAST = PARTITIONS - 1


class SpeculativeSource(QueueSource):
    """`chasqui.speculative`: the real writer, with rows that come in another order each time."""

    @classmethod
    def name(cls) -> str:
        return "chasqui.speculative"

    def writer(self, schema, overwrite):
        return SpeculatedWriter(self._options, layout_of(schema, self._options))


class SpeculatedWriter(QueueWriter):
    """Counts the runs of each partition; what a run does in the middle depends on its number."""

    def write(self, iterator: Iterator[pa.RecordBatch]):
        partition = TaskContext.get().partitionId()
        number = _number_of_run(self._run, partition)
        table = pa.Table.from_batches(list(iterator))

        def in_the_middle() -> None:
            _mark("middle", self._run, partition, number)
            if number == 0:
                _die_first(self._run, partition)
            if number == 1:
                _outlive(self._run, partition)

        return super().write(stopping(shuffled(table, number), in_the_middle))


def _die_first(run: str, partition: int) -> None:
    """While nobody was killed yet, a second run of a partition can only be a copy: wait for it."""
    _wait_for(lambda: _path("middle", run, partition, 1).exists(), "a copy")
    if partition == _LAST:
        others = [_path("dying", run, one, 0) for one in range(_LAST)]
        _wait_for(lambda: all(path.exists() for path in others), "the end of the others")
    _mark("dying", run, partition, 0)
    os.kill(_executor() if partition == _LAST else os.getpid(), signal.SIGKILL)


def _outlive(run: str, partition: int) -> None:
    """The other run is gone in its middle; of the last partition no run is left then."""
    _wait_for(lambda: _path("dying", run, partition, 0).exists(), "the other to die")
    first = int(_path("begun", run, partition, 0).read_text())
    _wait_for(lambda: not is_running(first), "its process to be gone")
    if partition == _LAST:
        os.kill(os.getpid(), signal.SIGKILL)


def _number_of_run(run: str, partition: int) -> int:
    number = 0
    while True:
        try:
            _mark("begun", run, partition, number)
        except FileExistsError:
            number += 1
        else:
            return number


def _mark(what: str, run: str, partition: int, number: int) -> None:
    """Say to the other runs where this one is; nobody can say it twice."""
    path = _path(what, run, partition, number)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(str(os.getpid()))
    try:
        path.hardlink_to(draft)
    finally:
        draft.unlink()


def _path(what: str, run: str, partition: int, number: int) -> Path:
    return Path(os.environ[FOLDER]) / f"{what} {run}.{partition}.{number}"


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + _WAIT_S_MAX
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{what} must come within {_WAIT_S_MAX} s, and did not")
        time.sleep(0.05)


def _executor() -> int:
    """This process is a child of Spark's daemon, which is a child of the executor."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
