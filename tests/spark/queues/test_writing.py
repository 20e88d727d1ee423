"""DataFrames into queues: what a row becomes, what is refused, and what is told afterwards."""

from __future__ import annotations

import asyncio
import time

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from chasquimq.errors import RowsRefused, SettingsError, WriteFailed
from chasquimq.spark.failures import complaint
from chasquimq.spark.queues.enqueue import enqueue
from chasquimq.store.producer.rows import bucket_keys
from chasquimq.wire.envelope import decode_envelope
from support.waiting import eventually


@pytest.fixture
def orders(spark):
    """Ids, names and a struct; every kind of value that a payload may hold."""
    return spark.sql("""
        select concat('order-', id) id, if(id % 2 = 0, 'charge', 'ship') kind,
               named_struct('n', id, 'price', id / 4, 'paid', id = 1, 'raw', cast('x' as binary),
                            'tags', array('a', null), 'more', map('k', named_struct('i', id)),
                            'none', cast(null as string)) body
        from range(0, 4, 1, 2)
    """)


def body(number: int) -> dict:
    return {
        "n": number, "price": number / 4, "paid": number == 1, "raw": b"x", "tags": ["a", None],
        "more": {"k": {"i": number}}, "none": None,
    }  # fmt: skip


def test_rows_become_jobs(add, orders, ready):
    done = add(orders, id_column="id", name_column="kind", payload_column="body")

    assert sorted(ready()) == [
        ("order-0", "charge", body(0)),
        ("order-1", "ship", body(1)),
        ("order-2", "charge", body(2)),
        ("order-3", "ship", body(3)),
    ]
    assert (done.rows, done.added, done.duplicates, done.skipped, done.tasks) == (4, 4, 0, 0, 2)
    assert done.payload_bytes > 100


@pytest.mark.takes_turns
def test_what_is_not_named_is_the_payload(add, spark, ready):
    add(spark.sql("select 'one' id, 5 n, 'red' as colour"), id_column="ID", name="paint")

    assert ready() == [("one", "paint", {"n": 5, "colour": "red"})]


def test_rows_may_wait_and_have_attempts_of_their_own(add, spark, feed, ready, delayed):
    frame = spark.sql("""
        select * from values ('now', 0, 3), ('soon', 60000, cast(null as int)), ('also now', null, 1)
        as t(id, wait, most)
    """)
    before_ms = time.time() * 1_000

    for columns in ({"id_column": "id"}, {}):
        add(frame, delay_column="wait", attempts_column="most", **columns)

    assert sorted(value["id"] if value else one for one, _, value in ready()) == [
        "also now", "also now", "now", "now",
    ]  # fmt: skip
    assert all(before_ms + 55_000 < due for _, due in delayed())
    assert len(delayed()) == 2
    envelopes = [fields[1] for _, fields in feed.call("XRANGE", feed.keys.stream, "-", "+")]
    attempts = [decode_envelope(one).retry.max_attempts for one in envelopes]
    assert sorted(attempts) == [1, 1, 3, 3]


@pytest.mark.takes_turns
async def test_a_worker_runs_what_was_written(add, orders, running_worker, queue):
    ran = []

    async def run(job):
        ran.append((job.id, job.name, job.data["n"]))

    await asyncio.to_thread(add, orders, id_column="id", name_column="kind", payload_column="body")
    await running_worker(run)
    await eventually(lambda: len(ran) == 4, within_s=30, what="four runs")

    assert min(ran) == ("order-0", "charge", 0)


async def test_an_id_is_one_job_whoever_adds_it(add, spark, queue):
    await queue.add("paint", {"n": 1}, job_id="one")
    await queue.add("paint", {"n": 2}, job_id="two")

    frame = spark.sql("select * from values ('one', 1), ('two', 9), ('three', 3) as t(id, n)")
    done = await asyncio.to_thread(add, frame, id_column="id", name="paint")
    again = await queue.add("paint", {"n": 3}, job_id="three")

    assert (done.added, done.duplicates, done.conflicts) == (1, 1, 1)
    assert again.is_duplicate


def test_equal_rows_are_as_many_jobs(add, spark, ready, feed):
    pings = spark.range(0, 500, 1, 4).select(F.lit("ping").alias("say"))

    done = add(pings, name="ping")

    assert done.added == 500
    assert len({one for one, _, _ in ready()}) == 500
    # Nobody can ask for these rows again, so what is known of them is soon forgotten.
    kept_ms = [feed.call("PTTL", key) for key in bucket_keys(feed.keys, done.run)]
    assert 0 < max(kept_ms) <= 600_000


def test_the_same_run_adds_what_is_missing_however_it_is_shared_out(add, spark, ready):
    rows = spark.range(0, 3_000, 1, 3).select((F.col("id") % 1_000).alias("n"))
    add(rows.limit(1_200).coalesce(1), run_id="nightly")

    done = add(rows.repartition(5), run_id="nightly")

    assert (done.added, done.duplicates) == (1_800, 1_200)
    assert len(ready()) == 3_000
    assert add(rows, run_id="another").added == 3_000


@pytest.mark.takes_turns
def test_rows_that_cannot_be_jobs_end_the_write_with_their_number(add, spark, ready):
    frame = spark.range(0, 100, 1, 1).selectExpr("if(id % 10 = 0, null, concat('o', id)) id")

    with pytest.raises(WriteFailed) as failed:
        add(frame, id_column="id", run_id="nightly")

    assert "rows must be rows that can become jobs, got '10 with no id'" in str(failed.value)
    assert "onError=skip" in str(failed.value)
    assert (failed.value.kind, failed.value.run) == ("SettingsError", "nightly")
    assert ready() == []


@pytest.mark.takes_turns
def test_what_spark_cannot_do_is_told_with_the_run_that_adds_the_rest(add, spark, ready):
    frame = spark.range(0, 100, 1, 1)

    with pytest.raises(WriteFailed) as failed:
        add(frame.selectExpr("if(id = 70, raise_error('no such row'), id) id"), pipeline_size=10)
    before = len(ready())
    done = add(frame, run_id=failed.value.run)

    assert str(failed.value).startswith("Spark must write every row, but said: ")
    assert f"runId={failed.value.run} adds only rows that are missing" in str(failed.value)
    assert failed.value.kind == ""
    assert done.added == 100 - before
    assert len(ready()) == 100


@pytest.mark.takes_turns
def test_rows_are_all_checked_before_the_first_is_added(add, spark, ready):
    frame = spark.range(0, 3_000, 1, 1).selectExpr(
        "if(id > 2990, null, concat('o', id)) id", "repeat('x', if(id = 2980, 3000, 3)) text"
    )
    wrong = {"id_column": "id", "max_payload_bytes": 2_000}

    with pytest.raises(RowsRefused) as failed:
        add(frame, check_first=True, **wrong)

    assert "9 with no id, 1 with a payload over 2000 bytes among 3,000" in str(failed.value)
    assert "none was added" in str(failed.value)
    assert failed.value.faults == {"no id": 9, "a payload over 2000 bytes": 1}
    assert failed.value.rows == 3_000
    assert ready() == []
    done = add(frame, check_first=True, on_error="skip", **wrong)
    assert (done.rows, done.added, done.skipped) == (3_000, 2_990, 10)


@pytest.mark.takes_turns
def test_rows_that_are_checked_first_are_added_once(add, spark, ready):
    done = add(spark.range(0, 50, 1, 2), check_first=True, run_id="nightly")

    assert (done.run, done.rows, done.added) == ("nightly", 50, 50)
    assert len(ready()) == 50


@pytest.mark.takes_turns
def test_a_dry_run_counts_and_writes_nothing(add, spark, feed):
    frame = spark.range(0, 100, 1, 2).selectExpr("if(id % 10 = 0, null, concat('o', id)) id")

    done = add(frame, id_column="id", dry_run=True)

    assert (done.rows, done.added, done.faults) == (100, 90, {"no id": 10})
    assert feed.call("EXISTS", feed.keys.stream, feed.keys.uniq("o1")) == 0


@pytest.mark.takes_turns
def test_a_queue_is_only_added_to(spark, at):
    with pytest.raises(PySparkException) as refused:
        spark.range(1).write.format("chasqui").options(**at).mode("overwrite").save()

    assert "mode must be append" in str(complaint(refused.value))


def test_a_full_queue_holds_the_write_up_until_there_is_room(add, spark, feed, ready):
    frame = spark.range(0, 40, 1, 2)

    with pytest.raises(WriteFailed) as full:
        add(frame, max_stream_len=20, queue_full_timeout_ms=50, run_id="r")
    held = len(ready())
    feed.call("DEL", feed.keys.stream)
    done = add(frame, max_stream_len=40, run_id="r")

    assert "may hold at most 20 jobs" in str(full.value)
    assert full.value.kind == "QueueFull"
    assert held == 20
    assert (done.added, done.duplicates) == (20, 20)


def test_a_pace_is_kept_by_all_tasks_together(add, spark):
    began_s = time.monotonic()
    done = add(spark.range(0, 30, 1, 2), max_rate=30)

    # The first tenth of a second passes at once, and the rest a tenth after each other.
    assert time.monotonic() - began_s >= 0.8
    assert done.added == 30
    assert done.waited_s > 0.5


@pytest.mark.takes_turns
def test_progress_is_told_while_it_goes_on(add, spark):
    told = []

    add(spark.range(0, 60, 1, 2), max_rate=30, on_rows=told.append)

    assert told == sorted(told)
    assert 0 < told[-1] <= 60


@pytest.mark.takes_turns
def test_figures_of_a_former_write_of_the_same_run_are_not_told_again(add, spark, feed):
    report = feed.keys.token("report:nightly")
    feed.call("HSET", report, "7", 1_000_000, "summary", "{}")
    told = []

    done = add(spark.range(0, 60, 1, 2), max_rate=30, on_rows=told.append, run_id="nightly")

    assert max(told) <= 60
    assert (done.rows, done.added) == (60, 60)
    assert b"7" not in feed.call("HKEYS", report)


def test_a_stream_adds_each_batch_once_also_after_a_restart(spark, at, ready, tmp_path):
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"

    def run() -> None:
        rows = spark.readStream.schema("id long").parquet(str(source))
        query = (
            rows.writeStream.format("chasqui").options(**at, name="n")
            .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(60)

    spark.range(0, 50, 1, 1).write.parquet(str(source))
    run()
    # As if the driver had died after the rows were in and before Spark noted it.
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    run()
    spark.range(50, 80, 1, 1).write.mode("append").parquet(str(source))
    run()

    assert sorted(value["id"] for _, _, value in ready()) == list(range(80))


@pytest.mark.takes_turns
@pytest.mark.parametrize("given", [{}, {"name": ""}, {"name": " "}], ids=["none", "empty", "blank"])
def test_a_write_without_a_name_is_refused_before_anything_is_written(
    spark, url, queue_name, feed, given
):
    with pytest.raises(SettingsError, match=r"nameColumn or name must be given.*allowUnnamed=true"):
        enqueue(spark.range(3), queue_name, redis_url=url, **given)

    assert feed.call("KEYS", f"*{queue_name}*") == []


@pytest.mark.takes_turns
def test_a_plain_write_without_a_name_is_refused_too(spark, at, feed, queue_name):
    with pytest.raises(Exception, match="nameColumn or name must be given"):
        spark.range(3).write.format("chasqui").options(**at).mode("append").save()

    assert feed.call("KEYS", f"*{queue_name}*") == []


_NAMES = "values ('a', 'send'), ('b', null), ('c', ''), ('d', '  ') as rows(id, kind)"


@pytest.mark.takes_turns
def test_rows_without_a_name_are_faults(add, spark, ready):
    frame = spark.sql(f"select * from {_NAMES}")
    with pytest.raises(RowsRefused, match="2 with a blank name, 1 with no name"):
        add(frame, id_column="id", name_column="kind", check_first=True)
    assert ready() == []

    done = add(frame, id_column="id", name_column="kind", on_error="skip")

    assert (done.added, done.faults) == (1, {"a blank name": 2, "no name": 1})
    assert [(job_id, name) for job_id, name, _ in ready()] == [("a", "send")]


@pytest.mark.takes_turns
def test_rows_without_a_name_are_jobs_where_that_is_asked_for(add, spark, ready):
    frame = spark.sql(f"select * from {_NAMES}")

    done = add(frame, id_column="id", name_column="kind", allow_unnamed=True)

    assert (done.added, done.faults) == (4, {})
    assert {job_id: name.strip() for job_id, name, _ in ready()} == {
        "a": "send", "b": "", "c": "", "d": "",
    }  # fmt: skip
