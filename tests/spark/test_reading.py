"""What a query reads, batch by batch: all of it, once, in shares that are even."""

from __future__ import annotations

import asyncio

import pytest

from chasquimq import UnrecoverableError
from chasquimq.errors import SettingsError
from chasquimq.spark.sources.history import HISTORY, HistorySource
from chasquimq.spark.sources.options import parse_options
from chasquimq.spark.sources.source import Subscription
from chasquimq.store.inspect.ranges import RangeStore
from chasquimq.wire.keys import QueueKeys
from support.drive import Drive
from support.waiting import eventually


def jobs(rows: list[dict]) -> list[str]:
    return [row["job_id"] for row in rows if row["job_id"] is not None]


def test_a_query_reads_what_is_there_and_then_what_comes(feed, history):
    feed.attempts(3, 2)
    query = history()

    first = query.batch()
    feed.attempts(4)
    second = query.batch()

    assert (len(first), len(second), query.batch()) == (5, 4, [])


def test_the_offset_is_the_last_id_and_the_number_of_entries(feed, history):
    ids = feed.attempts(3, 2)
    query = history()

    query.batch()

    assert query.offset == {feed.queue: f"{ids[-1]}@2"}


def test_a_query_of_a_queue_that_has_no_history_yet_waits_for_it(feed, history):
    query = history()
    assert (query.batch(), query.offset) == ([], {feed.queue: "0-0@0"})

    feed.attempts(3)

    assert len(query.batch()) == 3


def test_a_query_may_begin_behind_what_is_there(feed, history):
    feed.attempts(3)
    query = history(startingOffsets="latest")

    feed.attempts(1)

    assert len(query.batch()) == 1


def test_a_query_may_begin_behind_an_entry(feed, history):
    first, *_ = feed.attempts(3, 2, 1)

    query = history(startingOffsets=f'{{"{feed.queue}": "{first}"}}')

    assert query.offset == {feed.queue: f"{first}@1"}
    assert len(query.batch()) == 3


def test_a_query_may_begin_at_a_time(feed, history):
    key = feed.keys.history
    for at in (1_000, 2_000, 3_000):
        feed.call("XADD", key, f"{at}-7", "hello", "world")

    query = history(startingTimestamp="2000")

    assert query.offset == {feed.queue: "1999-18446744073709551615@1"}
    assert [row["stream_id"] for row in query.batch()] == ["2000-7", "3000-7"]


def test_a_time_before_everything_begins_with_the_first(feed, history):
    feed.attempts(2)

    assert len(history(startingTimestamp="0").batch()) == 2


def test_several_queues_are_read_together(feed, feeds, history):
    other = feeds(f"{feed.queue}-b")
    feed.attempts(2)
    other.attempts(3)

    query = history(subscribe=f"{feed.queue},{other.queue}")

    rows = query.batch()
    assert sorted(row["queue"] for row in rows) == [feed.queue] * 2 + [other.queue] * 3


def test_a_queue_that_appears_is_read_from_its_beginning(feeds, queue_name, options):
    options = {"chasqui.redis.url": options["chasqui.redis.url"]}
    query = Drive(
        HistorySource, options | {"subscribePattern": f"{queue_name}-*", "discoverEveryMs": "0"}
    )
    assert query.offset == {}
    feeds(f"{queue_name}-a").attempts(2)
    feeds(f"{queue_name}-b").attempts(3)

    batches = query.batches()

    assert sorted(jobs(batches[-1])) == sorted(
        ["job-0-0", "job-0-1"] + [f"job-0-{at}" for at in range(3)]
    )
    assert set(query.offset) == {f"{queue_name}-a", f"{queue_name}-b"}


def test_the_keyspace_is_not_walked_at_every_trigger(feeds, queue_name, url):
    feeds(f"{queue_name}-a").attempts(1)
    query = Drive(HistorySource, {"chasqui.redis.url": url, "subscribePattern": f"{queue_name}-*"})
    feeds(f"{queue_name}-b").attempts(1)

    query.batch()

    assert set(query.offset) == {f"{queue_name}-a"}


def test_a_query_that_reads_what_is_there_now_looks_for_queues_first(feeds, queue_name, url):
    feeds(f"{queue_name}-a").attempts(1)
    query = Drive(HistorySource, {"chasqui.redis.url": url, "subscribePattern": f"{queue_name}-*"})
    feeds(f"{queue_name}-b").attempts(2)

    rows = [row for batch in query.batches() for row in batch]

    assert sorted(row["queue"] for row in rows) == [f"{queue_name}-{end}" for end in "abb"]


def test_a_queue_that_is_no_longer_subscribed_keeps_its_place(feed, feeds, history):
    other = feeds(f"{feed.queue}-b")
    feed.attempts(1)
    other.attempts(1)
    query = history(subscribe=f"{feed.queue},{other.queue}")
    query.batch()
    place = query.offset[other.queue]
    other.attempts(1)

    narrowed = query.restarted(subscribe=feed.queue)

    assert narrowed.batch() == []
    assert narrowed.offset[other.queue] == place


@pytest.mark.parametrize(("cap", "sizes"), [(25, [20, 20, 20]), (30, [30, 30]), (5, [10] * 6)])
def test_a_batch_has_no_more_rows_than_allowed_but_one_entry(feed, history, cap, sizes):
    feed.attempts(*[10] * 6)

    batches = history(maxOffsetsPerTrigger=str(cap)).batches()

    assert [len(rows) for rows in batches] == sizes


def test_small_and_large_entries_are_weighed_by_their_rows(feed, history):
    feed.attempts(1, 100, 1, 1, 100, 1)

    batches = history(maxOffsetsPerTrigger="102").batches()

    assert [len(rows) for rows in batches] == [102, 102]


def test_the_cap_is_shared_by_queues_in_proportion(feed, feeds, events):
    other = feeds(f"{feed.queue}-b")
    feed.events(900)
    other.events(100)

    rows = events(subscribe=f"{feed.queue},{other.queue}", maxOffsetsPerTrigger="100").batch()

    assert sorted({row["queue"] for row in rows}) == [feed.queue, other.queue]
    assert len(rows) == 100
    assert sum(row["queue"] == other.queue for row in rows) == 10


def test_everything_is_read_where_spark_asks_for_everything(feed, history):
    feed.attempts(*[10] * 6)

    assert len(history(maxOffsetsPerTrigger="10").batch(everything=True)) == 60


def test_a_query_that_reads_what_is_there_now_ends(feed, history):
    feed.attempts(*[10] * 6)
    query = history(maxOffsetsPerTrigger="20")
    query._reader.prepareForTriggerAvailableNow()
    feed.attempts(10)

    rows = [query.batch() for _ in range(5)]

    assert [len(batch) for batch in rows] == [20, 20, 20, 0, 0]


def test_tasks_share_the_rows_evenly(feed, history):
    feed.attempts(*[10] * 80)
    query = history(minPartitions="4")

    query.batch()

    assert [sum(part.row_count for part in task.ranges) for task in query.tasks] == [200] * 4
    assert [len(query.read(task)) for task in query.tasks] == [200] * 4


def test_tasks_of_events_are_even_too(feed, events):
    feed.events(12_000)
    query = events(minPartitions="4")

    query.batch()

    assert [len(query.read(task)) for task in query.tasks] == [3_000] * 4


def test_a_burst_within_one_millisecond_is_shared_too(feed, events):
    feed.burst(12_000)
    query = events(minPartitions="2")

    query.batch()

    assert [len(query.read(task)) for task in query.tasks] == [6_000] * 2


def test_a_small_batch_is_one_task(feed, events):
    feed.events(100)
    query = events(minPartitions="8")

    rows = query.batch()

    assert (len(rows), len(query.tasks)) == (100, 1)


def test_pages_are_as_long_as_asked_for_and_nothing_falls_between_them(feed, events):
    feed.events(1_000)

    rows = events(fetchSize="7").batch()

    assert jobs(rows) == [f"job-{at}" for at in range(1_000)]


def test_a_batch_that_is_read_again_has_the_same_rows(feed, history):
    feed.attempts(*[10] * 6)
    query = history(maxOffsetsPerTrigger="35")
    start = query.offset
    first = query.batch()
    feed.attempts(10)

    again = query.restarted().rows_between(start, query.offset)

    assert again == first


def test_a_query_goes_on_where_its_checkpoint_is(feed, history):
    feed.attempts(*[10] * 6)
    query = history(maxOffsetsPerTrigger="25")
    first = query.batch()

    rest = [row for batch in query.restarted().batches() for row in batch]

    read = sorted((row["stream_id"], row["row"]) for row in [*first, *rest])
    assert len(read) == len(set(read)) == 60


def test_a_user_who_may_only_read_is_enough(feed, options, url):
    feed.call(
        "ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "+@connection", "-@scripting"
    )
    feed.attempts(*[10] * 40)
    query = Drive(
        HistorySource, options | {"chasqui.redis.url": f"{url}?username=reader&password=x"}
    )

    rows = query.batch()

    assert (len(rows), len(query.tasks)) == (400, 2)


async def test_what_workers_ran_is_what_is_read(queue, running_worker, history, events):
    ran = []

    async def run(job):
        ran.append(job.id)
        if job.data == 3:
            raise UnrecoverableError("three is refused")

    worker = await running_worker(run)
    await queue.add_bulk([{"name": "count", "data": at} for at in range(10)])
    await eventually(lambda: len(ran) == 10, what="ten runs")
    await worker.stop()

    rows = await asyncio.to_thread(history().batch)
    told = await asyncio.to_thread(events().batch)

    assert {row["job_id"] for row in rows} == {row["job_id"] for row in told if row["job_id"]}
    assert sorted(row["outcome"] for row in rows) == ["completed"] * 9 + ["dead"]
    assert [row["is_last"] for row in rows if row["row"] <= 0][-1] is True
    assert [row["fault"] for row in told] == [None] * len(told)


def test_foreign_and_broken_entries_are_marked_and_counted(feed, history):
    feed.attempts(2)
    feed.foreign(feed.keys.history, "hello", "world")
    feed.attempts(1)

    rows = history().batch()

    assert [row["outcome"] for row in rows] == ["completed"] * 3 + ["unreadable"]


def test_an_end_without_rows_reaches_the_reader(feed, history):
    feed.attempts(2)
    feed.attempts(0, is_last=True)

    (*_, mark) = history().batch()

    assert (mark["outcome"], mark["is_last"], mark["row"]) == ("mark", True, -1)


def test_a_stream_has_no_end_to_give(options):
    end = f'{{"{options["subscribe"]}": "5-0"}}'

    with pytest.raises(SettingsError, match="endingOffsets must be left out"):
        HistorySource(options | {"endingOffsets": end}).streamReader(None)


class GrowingStore(RangeStore):
    """A server on which another queue appears after every look."""

    def queues(self, pattern, place):
        found = super().queues(pattern, place)
        name = pattern.replace("*", str(len(found)))
        self._call("XADD", QueueKeys(name).history, "*", "n", "1")
        return found


def test_a_queue_that_appears_while_a_read_is_planned_is_left_to_the_next(url, queue_name):
    options = parse_options(
        {
            "chasqui.redis.url": url,
            "subscribePattern": f"{queue_name}-*",
            "discoverEveryMs": "0",
        }
    )
    store = GrowingStore(options.connection)
    subscription = Subscription(options, HISTORY, store)
    subscription.queues()

    start, end = subscription.span()
    subscription.close()

    assert set(start) == set(end) == {f"{queue_name}-0"}


async def test_a_query_that_stops_lets_go_of_the_server(feed, history, raw):
    feed.attempts(1)
    before = await planners(raw)
    query = history()
    query.batch()
    mine = await planners(raw) - before

    query._reader.stop()

    async def has_left() -> bool:
        return not mine & await planners(raw)

    assert mine
    await eventually(has_left, what="a planner that hung up")


async def planners(raw) -> set[bytes]:
    clients = (await raw("CLIENT", "LIST")).splitlines()
    return {one.split()[0] for one in clients if b"name=chasqui-spark" in one}
