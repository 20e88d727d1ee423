"""The two ways Spark writes to a queue: once, or batch after batch; tasks write, the driver sums up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from chasquimq.errors import NotSupportedError, StoreError
from chasquimq.model.log import get_logger
from chasquimq.spark.queues.layout import Layout
from chasquimq.spark.queues.options import QueueOptions
from chasquimq.spark.queues.report import Summary, TaskReport, summary_of
from chasquimq.spark.queues.task import WriteTask
from chasquimq.store.producer.rows import RowOwner, RowWriter

if TYPE_CHECKING:
    import pyarrow as pa

logger = get_logger(__name__)
SUMMARY_FIELD = "summary"
# What an attempt that was overtaken may still send is over long before.
FORGET_AFTER_MS = 600_000
# Spark's own names of what a task belongs to.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class QueueWriter(DataSourceArrowWriter):
    """Adds the rows of a DataFrame; made once by the driver, so all tasks know the same run."""

    def __init__(self, options: QueueOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._instance = uuid4().hex[:12]
        self._run = options.run_id or self._instance

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        owner = _owner(self._run, self._instance)
        return WriteTask(self._options, self._layout, owner).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = summary_of(one for one in messages if isinstance(one, TaskReport))
        _tell(self._options, self._run, done)
        if not self._options.run_id and not self._options.id_column:
            _forget(self._options, self._run)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Adds the rows of each batch; a batch that is done again after a stop is the same run."""

    def __init__(self, options: QueueOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._instance = uuid4().hex[:12]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        owner = _owner(_batch_run(self._options.run_id), self._instance)
        return WriteTask(self._options, self._layout, owner).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        reports = [one for one in messages if isinstance(one, TaskReport)]
        if not reports:
            return
        query = reports[0].run.rpartition(":")[0]
        _tell(self._options, query, summary_of(reports))
        if not self._options.run_id and not self._options.id_column:
            # Spark notes this commit later and may do the batch again, but never the one before.
            _forget(self._options, f"{query}:{batchId - 1}")


def _batch_run(run_id: str) -> str:
    """The run of a batch: the same one when it is done again, and no other batch's."""
    context = _context()
    query, batch = (
        run_id or context.getLocalProperty(_QUERY_ID),
        context.getLocalProperty(_BATCH_ID),
    )
    if query is None or batch is None:
        raise NotSupportedError(
            f"Spark must say which batch of which query a task belongs to ({_QUERY_ID}, "
            f"{_BATCH_ID}), found query {query}, batch {batch}; give the rows an idColumn, "
            "and write them with foreachBatch"
        )
    return f"{query}:{batch}"


def _owner(run: str, instance: str) -> RowOwner:
    context = _context()
    return RowOwner(run, instance, context.partitionId(), context.taskAttemptId())


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written inside tasks"
    return context


def _tell(options: QueueOptions, run: str, done: Summary) -> None:
    logger.info("rows enqueued", extra={"queue": options.queue, "summary": done.to_dict()})
    if options.dry_run and not options.report_progress:
        return
    _afterwards(options, lambda writer: writer.note(run, [SUMMARY_FIELD, done.to_json()]))


def _forget(options: QueueOptions, run: str) -> None:
    if not options.dry_run:
        _afterwards(options, lambda writer: writer.forget_run(run, FORGET_AFTER_MS))


def _afterwards(options: QueueOptions, act: Callable[[RowWriter], None]) -> None:
    """What is done when all rows are in: a server that is gone by then makes no failure of it."""
    writer = RowWriter(options.queue, options.connection, lambda _write, _marks: None)
    try:
        act(writer)
    except StoreError as trouble:
        logger.warning("a summary was not kept", extra={"error": str(trouble)})
    finally:
        writer.close()
