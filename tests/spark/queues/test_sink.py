"""What writers of batches do by themselves: how a run is named, and when its rows are forgotten."""

from __future__ import annotations

import pytest
from pyspark import TaskContext
from pyspark.sql import types as T  # noqa: N812  Spark's own habit

from chasquimq.errors import NotSupportedError
from chasquimq.spark.queues.options import parse_options
from chasquimq.spark.queues.report import TaskReport
from chasquimq.spark.queues.rows import layout_of
from chasquimq.spark.queues.sink import QueueStreamWriter
from chasquimq.store.producer.rows import bucket_keys

SIX_HOURS_MS = 6 * 3_600_000


@pytest.fixture
def writer_of(at):
    def make(**options: str) -> QueueStreamWriter:
        parsed = parse_options(at | options)
        return QueueStreamWriter(parsed, layout_of(T.StructType().add("id", "string"), parsed))

    return make


@pytest.fixture
def noted(feed):
    """Leave a note about a row of a run, and tell how long it is kept."""

    def note(run: str) -> str:
        key = bucket_keys(feed.keys, run)[0]
        feed.call("HSET", key, "row", 1)
        feed.call("PEXPIRE", key, SIX_HOURS_MS)
        return key

    return note


def test_a_batch_is_forgotten_when_the_next_one_is_committed(writer_of, noted, feed):
    before, this = noted("query:4"), noted("query:5")

    writer_of().commit([TaskReport(run="query:5")], 5)

    assert 0 < feed.call("PTTL", before) <= 600_000
    # Spark may still do this one again: it notes the commit later.
    assert feed.call("PTTL", this) > 600_000


def test_batches_of_a_run_that_has_a_name_are_known_for_their_whole_time(writer_of, noted, feed):
    before = noted("mine:4")

    writer_of(runId="mine").commit([TaskReport(run="mine:5")], 5)

    assert feed.call("PTTL", before) > 600_000


@pytest.fixture
def bare_task():
    """A task that Spark told nothing about its batch."""
    TaskContext._setTaskContext(None)
    context = TaskContext._getOrCreate()
    context._localProperties = {}
    context._partitionId, context._taskAttemptId = 0, 0
    yield context
    TaskContext._setTaskContext(None)


@pytest.mark.takes_turns
def test_a_batch_that_cannot_be_named_is_refused(writer_of, bare_task):
    with pytest.raises(NotSupportedError, match="must say which batch"):
        writer_of().write(iter([]))


@pytest.mark.takes_turns
def test_a_named_run_still_needs_the_number_of_its_batch(writer_of, bare_task):
    with pytest.raises(NotSupportedError, match="must say which batch"):
        writer_of(runId="mine").write(iter([]))

    bare_task._localProperties = {"streaming.sql.batchId": "7"}
    assert writer_of(runId="mine").write(iter([])).run == "mine:7"
