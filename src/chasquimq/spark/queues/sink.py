"""Writes DataFrames to a queue, once or batch after batch: tasks write, the driver sums up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from chasquimq.errors import NotSupportedError, SettingsError, StoreError
from chasquimq.model.chunks import slices
from chasquimq.model.log import get_logger
from chasquimq.spark.queues.options import QueueOptions
from chasquimq.spark.queues.report import Summary, TaskReport, faults_text, summary_of
from chasquimq.spark.queues.rows import Layout, RowReader, Rows
from chasquimq.store.producer.rows import (
    Jobs,
    OwnIdTerms,
    Patience,
    RowOwner,
    RowWrite,
    RowWriter,
    own_id_delay_writes,
    own_id_writes,
    run_writes,
)
from chasquimq.store.producer.writes import BYTES_PER_WRITE_MAX
from chasquimq.wire.new_job import encode_envelopes, job_digests, row_digests

if TYPE_CHECKING:
    import pyarrow as pa

    from chasquimq.store.producer.rows import Marked

logger = get_logger(__name__)
SUMMARY_FIELD = "summary"
# What an attempt that was overtaken may still send is over long before.
FORGET_AFTER_MS = 600_000
# Spark's own names of what a task belongs to.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_REPORT_EVERY_S = 0.5
# A pace is smooth where a write holds no more than what passes in this time.
_PACE_STEP_S = 0.1
# Under a cap a write must find room now and then, whatever else is in the queue.
_CAP_SHARE = 4


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
        _report(self._options, self._run, done)
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
        _report(self._options, query, summary_of(reports))
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


def _report(options: QueueOptions, run: str, done: Summary) -> None:
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
    except StoreError as error:
        logger.warning("a summary was not kept", extra={"error": str(error)})
    finally:
        writer.close()


class WriteTask:
    """One attempt of a task; its report is what Spark carries to the commit."""

    def __init__(self, options: QueueOptions, layout: Layout, owner: RowOwner) -> None:
        self._options = options
        self._owner = owner
        self._reader = RowReader(layout, options)
        self._report = TaskReport(run=owner.run, partition=owner.partition)
        self._writer = _open_writer(options, self._note_marks)
        self._reported_s = time.monotonic()

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Write all rows; those with faults end the task, or are counted and left out."""
        began_s = time.monotonic()
        try:
            for rows in self._slices(batches):
                self._put(rows)
            self._writer.drain()
            self._report.seconds = time.monotonic() - began_s
            self._report_progress(is_last=True)
        finally:
            self._writer.close()
        return self._report

    def _slices(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
        count = _rows_per_write(self._options)
        for batch in batches:
            for places in slices(batch.num_rows, count):
                piece = batch.slice(places.start, count)
                self._report.rows += piece.num_rows
                rows = self._reader.read(piece)
                self._note_faults(rows.faults)
                yield from rows.pieces(BYTES_PER_WRITE_MAX)

    def _note_faults(self, faults: dict[str, int]) -> None:
        self._report.note_faults(faults)
        if not faults or self._options.on_error == "skip" or self._options.dry_run:
            return
        raise SettingsError(
            "rows", faults_text(faults), "rows that can become jobs",
            hint=f"these are of partition {self._owner.partition}, of which "
            f"{self._report.added:,} rows were added before; correct them, "
            "or let onError=skip leave them out",
        )  # fmt: skip

    def _put(self, rows: Rows) -> None:
        if not len(rows):
            return
        self._report.payload_bytes += sum(map(len, rows.payloads))
        if self._options.dry_run:
            self._report.added += len(rows)
            return
        self._keep_pace(len(rows))
        for write in self._writes(rows):
            self._writer.put(write)
        self._report_progress()

    def _writes(self, rows: Rows) -> Iterator[RowWrite]:
        if rows.ids is None:
            yield from self._run_writes(rows)
            return
        if rows.waits_ms is None:
            yield from self._own_id_writes(rows, rows.ids)
            return
        ready = rows.only([at for at, ms in enumerate(rows.waits_ms) if not ms])
        if ready.ids:
            yield from self._own_id_writes(ready, ready.ids)
        later = rows.only([at for at, ms in enumerate(rows.waits_ms) if ms])
        if later.ids:
            yield from self._delay_writes(later, later.ids)

    def _run_writes(self, rows: Rows) -> Iterator[RowWrite]:
        digests = row_digests(
            self._owner.run, rows.names, rows.payloads, rows.waits_ms, rows.attempts
        )
        return run_writes(
            _jobs(rows, [digest.hex() for digest in digests], rows.waits_ms),
            digests,
            self._writer.keys,
            self._owner,
            stream_len_max=self._options.max_stream_len,
            keep_ms=self._options.unique_for_ms,
        )

    def _own_id_writes(self, rows: Rows, ids: Sequence[str]) -> Iterator[RowWrite]:
        terms = OwnIdTerms(
            stream_len_max=self._options.max_stream_len,
            unique_ms=self._options.unique_for_ms,
            has_leftovers=self._writer.has_leftovers(ids),
            has_many_set=self._writer.has_many_set(),
        )
        digests = job_digests(rows.names, rows.payloads)
        return own_id_writes(_jobs(rows, ids), digests, self._writer.keys, terms)

    def _delay_writes(self, rows: Rows, ids: Sequence[str]) -> Iterator[RowWrite]:
        return own_id_delay_writes(
            _jobs(rows, ids, rows.waits_ms),
            job_digests(rows.names, rows.payloads),
            self._writer.keys,
            unique_ms=self._options.unique_for_ms,
        )

    def _keep_pace(self, row_count: int) -> None:
        if self._options.max_rate is None:
            return
        wait_ms = self._writer.wait_ms(self._owner.instance, row_count, self._options.max_rate)
        if wait_ms > 0:
            time.sleep(wait_ms / 1000)
            self._report.waited_s += wait_ms / 1000

    def _note_marks(self, write: RowWrite, marks: bytes) -> None:
        self._report.added += marks.count(b"1")
        self._report.duplicates += marks.count(b"0")
        self._report.conflicts += marks.count(b"2")

    def _report_progress(self, *, is_last: bool = False) -> None:
        is_due = is_last or time.monotonic() - self._reported_s >= _REPORT_EVERY_S
        if not self._options.report_progress or self._options.dry_run or not is_due:
            return
        self._reported_s = time.monotonic()
        # An attempt that is run again writes over the figures of the first.
        self._writer.note(self._owner.run, [str(self._owner.partition), str(self._report.rows)])


def _open_writer(options: QueueOptions, on_marks: Marked) -> RowWriter:
    return RowWriter(
        options.queue,
        options.connection,
        on_marks,
        patience=Patience(full_s=options.queue_full_timeout_ms / 1000),
        stream_len_max=options.max_stream_len,
    )


def _rows_per_write(options: QueueOptions) -> int:
    count = options.pipeline_size
    if options.max_rate is not None:
        count = min(count, int(options.max_rate * _PACE_STEP_S))
    if options.max_stream_len:
        count = min(count, options.max_stream_len // _CAP_SHARE)
    return max(1, count)


def _jobs(rows: Rows, ids: Sequence[str], waits_ms: Sequence[int] | None = None) -> Jobs:
    now_ms = time.time_ns() // 1_000_000
    envelopes = encode_envelopes(ids, rows.payloads, now_ms, rows.attempts)
    return Jobs(ids, rows.names, envelopes, waits_ms)
