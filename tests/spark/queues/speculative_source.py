"""The sink on a real cluster: first runs are killed, later ones wait for their speculative copy."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from chasquimq.spark.queues.layout import layout_of
from chasquimq.spark.queues.sink import QueueWriter
from chasquimq.spark.queues.source import QueueSource

FOLDER = "CHASQUI_TEST_RUNS"
_ROWS_BEFORE_A_STOP = 700
_WAIT_S_MAX = 300.0


class SpeculativeSource(QueueSource):
    """`chasqui.speculative`: the real writer, with rows that come in another order each time."""

    @classmethod
    def name(cls) -> str:
        return "chasqui.speculative"

    def writer(self, schema, overwrite):
        return SpeculatedWriter(self._options, layout_of(schema, self._options))


class SpeculatedWriter(QueueWriter):
    """Counts the runs of each partition; what a run does depends on its number."""

    def write(self, iterator: Iterator[pa.RecordBatch]):
        place = f"{self._run}.{TaskContext.get().partitionId()}"
        number = _number_of_run(place)
        table = pa.Table.from_batches(list(iterator))
        batches = _stopping(_shuffled(table, number), lambda: _in_the_middle(place, number))
        return super().write(batches)


def _in_the_middle(place: str, number: int) -> None:
    if number == 0:
        # A partition in three takes its executor along, and with it what the shuffle wrote there.
        os.kill(_executor() if place.endswith(".2") else os.getpid(), signal.SIGKILL)
    elif place.endswith(".0") and not _is_there(_marker(place, number - 1)):
        # The run before is dead, so this is no copy: it waits for one.
        _wait_for(_marker(place, number + 1))


def _number_of_run(place: str) -> int:
    number = 0
    while True:
        try:
            with _marker(place, number).open("x") as marker:
                marker.write(str(os.getpid()))
        except FileExistsError:
            number += 1
        else:
            return number


def _is_there(marker: Path) -> bool:
    """Whether the process of that run lives."""
    try:
        stat = Path(f"/proc/{marker.read_text()}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _marker(place: str, number: int) -> Path:
    return Path(os.environ[FOLDER]) / f"{place}.{number}"


def _wait_for(path: Path) -> None:
    until_s = time.monotonic() + _WAIT_S_MAX
    while not path.exists() and time.monotonic() < until_s:
        time.sleep(0.05)


def _executor() -> int:
    """This process is a child of Spark's daemon, which is a child of the executor."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _shuffled(table: pa.Table, seed: int) -> Iterator[pa.RecordBatch]:
    places = list(range(table.num_rows))
    random.Random(seed).shuffle(places)
    yield from table.take(places).combine_chunks().to_batches(max_chunksize=100)


def _stopping(batches: Iterator[pa.RecordBatch], stop) -> Iterator[pa.RecordBatch]:
    passed = 0
    for batch in batches:
        yield batch
        passed += batch.num_rows
        if passed == _ROWS_BEFORE_A_STOP:
            stop()
