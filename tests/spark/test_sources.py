"""The sources in a real session: registered, read once, read as a stream, stopped and resumed."""

from __future__ import annotations

import time

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  Spark's own habit

from chasquimq.spark.failures import complaint
from support.attempts import BASE_MS
from wire.vectors import load


@pytest.fixture
def table(spark, options):
    """Reads a source once."""

    def read(source: str, **more: str):
        return spark.read.format(source).options(**options | more).load()

    return read


@pytest.fixture
def stream(spark, options, tmp_path):
    """Starts a query from a source to a folder of Parquet, with one checkpoint for the test."""
    running = []

    def start(source: str, trigger=None, **more: str):
        rows = spark.readStream.format(source).options(**options | more).load()
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        running.append(writer.trigger(**(trigger or {"availableNow": True})).start())
        return running[-1]

    yield start
    for query in running:
        query.stop()


@pytest.fixture
def written(spark, tmp_path):
    """What the stream has written so far."""
    return lambda: spark.read.parquet(str(tmp_path / "rows"))


def test_the_history_is_read_once(table, feed):
    feed.attempts(3, 2)
    feed.attempts(0, is_last=True)

    rows = table("chasqui.history")

    attempts = rows.where("row >= 0").orderBy("stream_id", "row").collect()
    assert [row.job_id for row in attempts] == [
        "job-0-0",
        "job-0-1",
        "job-0-2",
        "job-1-0",
        "job-1-1",
    ]
    assert attempts[0].outcome == "completed"
    assert rows.select(F.unix_micros("started_at")).first()[0] == BASE_MS * 1_000 + 5
    assert rows.where("row <= 0").count() == 3
    assert rows.where("is_last").count() == 1


def test_a_queue_that_is_not_there_has_no_rows_until_it_appears(table, stream, written, feed):
    query = stream("chasqui.history")
    query.awaitTermination(60)
    assert table("chasqui.history").count() == 0

    feed.attempts(3)
    query = stream("chasqui.history")
    query.awaitTermination(60)

    assert query.exception() is None
    assert table("chasqui.history").where("row >= 0").count() == 3
    assert written().where("row >= 0").count() == 3


def test_the_events_of_the_original_are_read_once(table, feed):
    for event in load("events")["events_clean_run"]["events"]:
        feed.foreign(feed.keys.events, *[part for pair in event["fields"] for part in pair])

    counts = table("chasqui.events").where("fault is null").groupBy("event").count().collect()

    assert {row.event: row["count"] for row in counts} == {
        "active": 5, "completed": 4, "failed": 1, "retry-scheduled": 1, "waiting": 2, "drained": 1,
    }  # fmt: skip


def test_bad_events_do_not_stop_a_query(table, feed):
    feed.events(1)
    feed.foreign(feed.keys.events, "e", "active", "id", b"\xff", "attempt", "abc", "trace", "t-1")
    feed.foreign(feed.keys.events, "hello", "world")

    rows = table("chasqui.events", includeExtra="true").orderBy("stream_id").collect()

    assert [row.event for row in rows] == ["active", "active", "unreadable"]
    assert [row.fault for row in rows[:2]] == [None, "id, attempt"]
    assert [row.extra for row in rows] == [
        None,
        {"attempt": "abc", "trace": "t-1"},
        {"hello": "world"},
    ]


def test_a_read_may_end_before_the_end(table, feed):
    first, second, *_ = feed.attempts(1, 2, 4, 8)
    places = {name: f'{{"{feed.queue}": "{entry_id}"}}' for name, entry_id in
              (("startingOffsets", first), ("endingOffsets", second))}  # fmt: skip

    assert table("chasqui.history", **places).count() == 2


def test_nothing_to_read_is_an_empty_table(table):
    assert table("chasqui.history").count() == 0


def test_tasks_get_even_shares(table, feed):
    feed.attempts(*[10] * 40)

    rows = table("chasqui.history", minPartitions="4")

    shares = rows.groupBy(F.spark_partition_id()).count().collect()
    assert [row["count"] for row in shares] == [100] * 4


def test_a_filter_on_the_queue_spares_the_others(table, feed, feeds):
    other = feeds(f"{feed.queue}-b")
    feed.attempts(1)
    other.attempts(2)
    rows = table(
        "chasqui.history", subscribe=f"{feed.queue},{other.queue}", filterPushdown="true"
    ).where(F.col("queue") == other.queue)

    assert rows.count() == 2
    assert rows.rdd.getNumPartitions() == 1


def test_a_stream_reads_what_is_there_in_bounded_batches(stream, written, feed):
    feed.attempts(*[10] * 6)

    query = stream("chasqui.history", maxOffsetsPerTrigger="25")
    query.awaitTermination()

    sizes = [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]
    assert sizes == [20, 20, 20]
    assert written().select("job_id").distinct().count() == 60


def test_a_stream_goes_on_exactly_where_it_stopped(stream, written, feed):
    feed.attempts(*[10] * 3)
    stream("chasqui.history").awaitTermination()
    feed.attempts(*[10] * 2)

    stream("chasqui.history").awaitTermination()

    assert written().count() == 50
    assert written().select("stream_id", "row").distinct().count() == 50


def test_a_stream_stops_at_a_loss_and_goes_on_when_told(stream, written, feed):
    feed.events(1)
    stream("chasqui.events").awaitTermination()
    feed.events(10)
    feed.trim(feed.keys.events, 4)

    with pytest.raises(PySparkException) as stopped:
        stream("chasqui.events").awaitTermination()
    stream("chasqui.events", failOnDataLoss="false").awaitTermination()

    assert "6 entries were trimmed before they were read" in str(complaint(stopped.value))
    assert [row.lost for row in written().where("event = 'gap'").collect()] == [6]
    assert written().where("event = 'active'").count() == 5


def test_a_running_stream_finds_new_queues(stream, written, feeds, queue_name, spark, options):
    del options["subscribe"]
    feeds(f"{queue_name}-a").attempts(1)
    query = stream(
        "chasqui.history", {"processingTime": "0 seconds"},
        subscribePattern=f"{queue_name}-*", discoverEveryMs="0",
    )  # fmt: skip
    query.processAllAvailable()

    feeds(f"{queue_name}-b").attempts(2)

    assert eventually(lambda: written().where(f"queue = '{queue_name}-b'").count() == 2)
    assert query.isActive


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"fetchSize": "x"}, "fetchSize must be a whole number, got 'x'"),
        ({"failOnDataLos": "false"}, "did you mean failOnDataLoss?"),
        ({"subscribePattern": "*"}, "subscribe or subscribePattern must be given, one of the two"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_read(table, more, words):
    with pytest.raises(PySparkException) as refused:
        table("chasqui.history", **more)

    assert words in str(complaint(refused.value))


@pytest.mark.takes_turns
def test_a_server_that_is_not_there_is_named_without_its_password(table):
    url = {"chasqui.redis.url": "redis://:sesame@127.0.0.1:1"}

    with pytest.raises(PySparkException) as refused:
        table("chasqui.events", **url).count()

    assert "a server must answer at redis://:***@127.0.0.1:1" in str(complaint(refused.value))
    assert "sesame" not in str(refused.value)


@pytest.mark.takes_turns
def test_a_checkpoint_holds_places_and_no_address(stream, feed, url, tmp_path):
    (entry_id,) = feed.attempts(1)
    stream("chasqui.history").awaitTermination()

    kept = "".join(
        path.read_text() for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    )
    assert f'{{"{feed.queue}": "{entry_id}@1"}}' in kept
    assert url.partition("://")[2] not in kept


def eventually(condition, within_s: float = 60.0) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if condition():
            return True
    return False


@pytest.mark.takes_turns
def test_the_url_stays_out_of_plans(table, feed, url, capsys):
    feed.attempts(1)

    table("chasqui.history").where("row >= 0").explain(extended=True)

    plan = capsys.readouterr().out
    assert "Physical Plan" in plan
    assert url not in plan
