"""Queues as DataFrames: what waits, what is delayed, what died, and what was kept."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from chasquimq import UnrecoverableError, Worker
from chasquimq.spark.failures import complaint


@pytest.fixture
def table(spark, at):
    """Read a place of the queue."""
    return lambda **more: spark.read.format("chasqui").options(**at | more).load()


async def test_waiting_jobs_are_rows(table, queue, queue_name):
    await queue.add("charge", {"order": 7, "raw": b"x"}, job_id="seven", attempts=3)
    await queue.add("ship", [1, None])

    rows = await asyncio.to_thread(table().orderBy("entry_id").collect)

    assert [(row.queue, row.name, row.attempt) for row in rows] == [
        (queue_name, "charge", 0), (queue_name, "ship", 0),
    ]  # fmt: skip
    assert (rows[0].job_id, rows[0].max_attempts) == ("seven", 3)
    assert json.loads(rows[0].payload) == {"order": 7, "raw": {"$base64": "eA=="}}
    assert rows[1].payload == "[1,null]"
    assert rows[0].enqueued_at is not None
    assert rows[0].ready_at is not None
    assert [row.fault for row in rows] == [None, None]


@pytest.mark.takes_turns
async def test_a_payload_may_have_a_schema(table, queue):
    await queue.add("n", {"order": 7, "tags": ["a"], "more": 1})
    await queue.add("n", {"order": "seven"})
    await queue.add("n", 5)
    typed = table(payloadSchema="order bigint, tags array<string>").orderBy("entry_id")

    rows = await asyncio.to_thread(typed.collect)
    raw = await asyncio.to_thread(table(payload="binary").collect)

    assert rows[0].payload.asDict() == {"order": 7, "tags": ["a"]}
    assert [row.payload for row in rows[1:]] == [None, None]
    assert rows[1].fault == rows[2].fault == "payload: does not fit its schema"
    assert {bytes(row.payload) for row in raw} >= {b"\x05"}


def test_many_jobs_are_read_by_many_tasks_each_once(table, add, spark):
    add(spark.range(0, 20_000, 1, 2).selectExpr("concat('o', id) id"), id_column="id")

    rows = table(minPartitions="4", fetchSize="700")

    read = rows.select("job_id", F.spark_partition_id().alias("task")).collect()
    assert sorted(Counter(row.task for row in read).values()) == [5_000] * 4
    assert len({row.job_id for row in read}) == 20_000


def test_delayed_jobs_are_read_each_once(table, add, spark):
    frame = spark.range(0, 6_000, 1, 2).selectExpr(
        "concat('o', id) id", "if(id < 3000, 60000, 60000 + id) wait", "id n"
    )
    add(frame, id_column="id", delay_column="wait", name="later")

    rows = table(read="delayed", minPartitions="3", fetchSize="250")

    read = rows.withColumn("task", F.spark_partition_id()).collect()
    assert len({row.task for row in read}) > 1
    assert len(read) == len({row.job_id for row in read}) == 6_000
    first = next(row for row in read if row.job_id == "o5")
    assert (first.name, json.loads(first.payload)["n"]) == ("later", 5)
    assert first.due_at > first.enqueued_at


async def test_dead_jobs_are_rows_with_their_reasons(table, queue, url, queue_name):
    async def refuse(job):
        raise UnrecoverableError(f"no {job.data}")

    await queue.add("charge", 7)
    await Worker(queue_name, refuse, redis_url=url).run_until_idle()

    (row,) = await asyncio.to_thread(table(read="dlq").collect)

    assert (row.name, row.payload, row.reason) == ("charge", "7", "unrecoverable")
    assert row.error == "UnrecoverableError: no 7"
    assert row.attempt == 1
    assert row.fingerprint
    assert "in refuse" in row.traceback
    assert row.failed_at is not None
    assert row.buried_at is not None


async def test_results_are_rows_of_finished_jobs(table, queue, url, queue_name):
    async def answer(job):
        if job.data == 3:
            raise UnrecoverableError("three is refused")
        return {"double": job.data * 2}

    jobs = await queue.add_bulk([{"name": "n", "data": at} for at in range(4)])
    worker = Worker(queue_name, answer, redis_url=url, store_results=True)
    await worker.run_until_idle()

    rows = await asyncio.to_thread(table(read="results").collect)

    found = {row.job_id: row for row in rows}
    assert len(rows) == len(found) == 4
    assert json.loads(found[jobs[1].id].result) == {"double": 2}
    assert found[jobs[1].id].status == "completed"
    assert 0 < found[jobs[1].id].ttl_ms <= 3_600_000
    assert (found[jobs[3].id].status, found[jobs[3].id].result) == ("dead", None)
    assert "three is refused" in found[jobs[3].id].error


@pytest.mark.takes_turns
def test_what_cannot_be_read_says_so(table, feed):
    feed.foreign(feed.keys.stream, "hello", "world")
    feed.foreign(feed.keys.stream, "d", b"\x94\xa1a\xc4\x01\xc1\x05\x00", "n", "odd")
    feed.call("ZADD", feed.keys.delayed, 5, b"x")

    rows = table().orderBy("entry_id").collect()
    (member,) = table(read="delayed").collect()

    assert [row.fault for row in rows] == [
        "envelope: not a job of this wire", "payload: not one MessagePack value",
    ]  # fmt: skip
    assert (rows[1].job_id, rows[1].name, rows[1].payload) == ("a", "odd", None)
    assert member.fault == "envelope: not a job of this wire"


@pytest.mark.takes_turns
@pytest.mark.parametrize("place", ["stream", "delayed", "results"])
def test_an_empty_queue_has_no_rows(table, place):
    assert table(read=place).count() == 0


@pytest.mark.takes_turns
def test_a_wrong_option_is_refused(table):
    with pytest.raises(PySparkException) as refused:
        table(idColumn="id").count()

    assert "idColumn must be left out of a read" in str(complaint(refused.value))
