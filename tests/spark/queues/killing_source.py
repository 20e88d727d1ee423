"""The sink under the worst that Spark can do: killed in the middle, run twice at once, reordered."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from chasquimq.spark.queues.rows import layout_of
from chasquimq.spark.queues.sink import QueueWriter, WriteTask
from chasquimq.spark.queues.source import QueueSource
from chasquimq.store.producer.rows import RowOwner
from support.row_storm import shuffled, stopping


class KillingSource(QueueSource):
    """`chasqui.killing`: the real writer, with rows that come as after an unlucky shuffle."""

    @classmethod
    def name(cls) -> str:
        return "chasqui.killing"

    def writer(self, schema, overwrite):
        return KilledWriter(self._options, layout_of(schema, self._options))


class KilledWriter(QueueWriter):
    """The first attempt of every task is killed; the second runs beside a copy of itself."""

    def write(self, iterator: Iterator[pa.RecordBatch]):
        context = TaskContext.get()
        table = pa.Table.from_batches(list(iterator))
        if context.attemptNumber() == 0:
            return super().write(stopping(shuffled(table, seed=0), _die))
        # What speculation does, without waiting for Spark to think of it.
        beside = RowOwner(
            self._run, self._instance, context.partitionId(), 1_000_000 + context.taskAttemptId()
        )
        copy = threading.Thread(
            target=WriteTask(self._options, self._layout, beside).write,
            args=(shuffled(table, seed=1),),
        )
        copy.start()
        report = super().write(shuffled(table, seed=2))
        copy.join()
        return report


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
