"""What a query says of entries that are gone: a number and a reason, or it stops."""

from __future__ import annotations

import json

import msgspec
import pytest

from chasquimq.errors import EntriesLost
from chasquimq.spark.offsets import Position
from chasquimq.spark.sources.history import HISTORY, HistorySource
from chasquimq.spark.sources.options import parse_options
from chasquimq.spark.sources.planning import Planner
from chasquimq.spark.sources.source import Subscription
from chasquimq.store.inspect.ranges import RangeStore

GOES_ON = {"failOnDataLoss": "false"}


def gaps(rows: list[dict]) -> list[tuple]:
    return [
        (row["stream_id"], row["lost"], row["error_class"])
        for row in rows
        if row["outcome"] == "gap"
    ]


def attempts(rows: list[dict]) -> int:
    return sum(row["row"] >= 0 for row in rows)


def test_a_query_stops_when_entries_were_trimmed_before_it_read_them(feed, history):
    first, *_ = feed.attempts(1)
    query = history()
    query.batch()
    feed.attempts(*[1] * 10)
    feed.trim(feed.keys.history, 4)

    with pytest.raises(EntriesLost) as stopped:
        query.batch()

    message = str(stopped.value)
    assert (stopped.value.queue, stopped.value.lost) == (feed.queue, 6)
    assert f"of queue '{feed.queue}' must be read" in message
    assert f"after {first} 6 entries were trimmed" in message
    assert "set failOnDataLoss=false" in message
    assert "leave --fail-on-data-loss out" in message


def test_a_query_that_goes_on_says_how_many_are_missing_and_where(feed, history):
    first, *_ = feed.attempts(1)
    query = history(**GOES_ON)
    query.batch()
    feed.attempts(*[1] * 10)
    feed.trim(feed.keys.history, 4)

    rows = query.batch()

    assert attempts(rows) == 4
    assert gaps(rows) == [(first, 6, "trimmed")]
    assert "6 entries were trimmed before they were read" in [row["error"] for row in rows]


def test_a_loss_is_told_once(feed, history):
    feed.attempts(1)
    query = history(**GOES_ON)
    query.batch()
    feed.attempts(*[1] * 10)
    feed.trim(feed.keys.history, 4)
    query.batch()
    feed.attempts(1)

    assert gaps(query.batch()) == []


def test_a_loss_is_told_again_when_its_batch_is_read_again(feed, history):
    feed.attempts(1)
    query = history(**GOES_ON)
    query.batch()
    feed.attempts(*[1] * 10)
    feed.trim(feed.keys.history, 4)
    start = query.offset
    rows = query.batch()

    assert query.restarted().rows_between(start, query.offset) == rows


def test_a_stopped_query_goes_on_once_the_loss_is_accepted(feed, history):
    feed.attempts(1)
    query = history()
    query.batch()
    feed.attempts(*[1] * 10)
    feed.trim(feed.keys.history, 4)
    with pytest.raises(EntriesLost):
        query.batch()

    rows = query.restarted(**GOES_ON).batch()

    assert (attempts(rows), [lost for _, lost, _ in gaps(rows)]) == (4, [6])


def test_a_loss_larger_than_the_cap_is_told_in_one_batch(feed, history):
    feed.attempts(1)
    query = history(**GOES_ON, maxOffsetsPerTrigger="2")
    query.batch()
    feed.attempts(*[1] * 20)
    feed.trim(feed.keys.history, 5)

    batches = query.batches()

    assert [attempts(rows) for rows in batches] == [2, 2, 1]
    assert [[lost for _, lost, _ in gaps(rows)] for rows in batches] == [[15], [], []]


def test_everything_that_was_unread_may_be_gone(feed, history):
    feed.attempts(1)
    query = history(**GOES_ON)
    query.batch()
    feed.attempts(*[1] * 10)
    feed.trim(feed.keys.history, 0)

    gone = query.batches()
    feed.attempts(1)
    later = query.batches()

    assert [[lost for _, lost, _ in gaps(rows)] for rows in gone] == [[10]]
    assert [(attempts(rows), gaps(rows)) for rows in later] == [(1, [])]


def test_entries_trimmed_between_planning_and_reading_are_missed(feed, history):
    feed.attempts(*[1] * 10)
    query = history(**GOES_ON, minPartitions="2")
    end = query._reader.latestOffset(query.offset, query._reader.getDefaultReadLimit())
    tasks = query._reader.partitions(query.offset, end)
    feed.trim(feed.keys.history, 2)

    rows = [row for task in tasks for row in query.read(task)]

    assert attempts(rows) == 2
    assert sum(lost for _, lost, _ in gaps(rows)) == 8


def test_a_task_stops_when_entries_are_trimmed_before_it_reads(feed, history):
    feed.attempts(*[1] * 10)
    query = history()
    end = query._reader.latestOffset(query.offset, query._reader.getDefaultReadLimit())
    task, *_ = query._reader.partitions(query.offset, end)
    feed.trim(feed.keys.history, 2)

    with pytest.raises(EntriesLost, match="entries were trimmed"):
        query.read(task)


def test_what_was_trimmed_before_a_query_began_is_not_its_loss(feed, history):
    feed.attempts(*[1] * 10)
    feed.trim(feed.keys.history, 4)

    assert attempts(history().batch()) == 4


def test_trimming_what_was_read_already_is_no_loss(feed, history):
    feed.attempts(*[1] * 10)
    query = history()
    query.batch()
    feed.trim(feed.keys.history, 0)

    assert query.batches() == []


def test_a_query_stops_when_the_stream_was_created_anew(feed, history):
    feed.attempts(*[1] * 10)
    query = history()
    query.batch()
    feed.delete(feed.keys.history)
    feed.attempts(1)

    with pytest.raises(EntriesLost, match="deleted, re-created or rolled back"):
        query.batch()


@pytest.mark.parametrize("count", [3, 10, 25], ids=["fewer", "as many", "more"])
def test_a_query_that_goes_on_reads_all_of_a_stream_that_was_created_anew(feed, history, count):
    last = feed.attempts(*[1] * 10)[-1]
    query = history(**GOES_ON)
    query.batch()
    feed.delete(feed.keys.history)
    feed.attempts(*[1] * count)

    rows = [row for batch in query.batches() for row in batch]

    assert attempts(rows) == count
    assert gaps(rows) == [(last, None, "reset")]


def test_a_stream_that_was_deleted_is_told_before_a_new_one_comes(feed, history):
    feed.attempts(*[1] * 10)
    query = history(**GOES_ON)
    query.batch()
    feed.delete(feed.keys.history)

    rows = [row for batch in query.batches() for row in batch]
    feed.attempts(1, 1)
    later = [row for batch in query.batches() for row in batch]

    assert [label for _, _, label in gaps(rows)] == ["reset"]
    assert (attempts(later), gaps(later)) == (2, [])


def test_a_stream_that_lost_its_end_in_a_failover_is_not_read_twice(feed, history):
    key = feed.keys.history
    feed.attempts(*[1] * 8)
    as_replicated = feed.call("DUMP", key)
    feed.attempts(1, 1)
    query = history(**GOES_ON)
    query.batch()
    feed.delete(key)
    feed.call("RESTORE", key, 0, as_replicated)
    feed.attempts(1, 1)

    rows = [row for batch in query.batches() for row in batch]

    assert attempts(rows) == 2
    assert [label for _, _, label in gaps(rows)] == ["reset"]


def test_events_are_missed_in_the_same_way(feed, events):
    feed.events(1)
    query = events(**GOES_ON)
    query.batch()
    feed.events(300)
    feed.trim(feed.keys.events, 100)

    rows = query.batch()

    (gap,) = [row for row in rows if row["event"] == "gap"]
    assert (gap["lost"], gap["fault"], gap["job_id"]) == (200, "trimmed", None)
    assert len(rows) == 101


class UncountingStore(RangeStore):
    """What a server before 7.0 answers: it has no counter of entries."""

    def facts(self, keys):
        return [msgspec.structs.replace(one, added=None) for one in super().facts(keys)]


@pytest.fixture
def uncounted(options):
    parsed = parse_options(options)
    store = UncountingStore(parsed.connection)
    yield Planner(parsed, HISTORY, store)
    store.close()


def test_where_the_server_does_not_count_nothing_lost_is_nothing_told(feed, uncounted):
    first, second = feed.attempts(1, 1)
    start = {feed.queue: Position(first)}

    end = uncounted.advance(start, [feed.queue], None, None)

    assert end == {feed.queue: Position(second)}
    assert [piece.loss for piece in uncounted.ranges(start, end)] == [""]


def test_where_the_server_does_not_count_a_trimmed_place_is_a_loss_of_unknown_size(feed, uncounted):
    first, *_ = feed.attempts(1, 1, 1)
    feed.trim(feed.keys.history, 1)
    start = {feed.queue: Position(first)}

    end = uncounted.advance(start, [feed.queue], None, None)

    with pytest.raises(EntriesLost, match="of unknown number"):
        uncounted.ranges(start, end)


class TrimmingStore(RangeStore):
    """A server that trims between the question how long a stream is and the walk along it."""

    keep: int | None = None

    def facts(self, keys):
        found = super().facts(keys)
        if self.keep is not None:
            for key in keys:
                self._call("XTRIM", key, "MAXLEN", "=", self.keep)
        return found


def test_entries_trimmed_while_a_batch_is_planned_are_missed(feed, options):
    feed.attempts(*[1] * 10)
    parsed = parse_options(options | GOES_ON)
    store = TrimmingStore(parsed.connection)
    planner = Planner(parsed, HISTORY, store)
    start = planner.firsts([feed.queue])
    store.keep = 8

    end = planner.advance(start, [feed.queue], None, None)
    pieces = planner.ranges(start, end)
    store.close()

    assert end[feed.queue].count == 10
    assert sum(piece.entry_count for piece in pieces) == 10


@pytest.fixture
def read_once(options):
    """Reads once what lies between two places, without Spark."""

    def read(**more: str) -> list[dict]:
        reader = HistorySource(options | more).reader(None)
        return [
            row
            for task in reader.partitions()
            for batch in reader.read(task)
            for row in batch.to_pylist()
        ]

    return read


@pytest.mark.parametrize("count", [50, 0], ids=["made anew", "deleted"])
def test_a_read_that_begins_in_a_stream_of_before_tells_that_it_is_gone(feed, read_once, count):
    feed.attempts(*[1] * count)
    since = json.dumps({feed.queue: "1000-0@1000"})

    rows = read_once(**GOES_ON, startingOffsets=since)

    assert attempts(rows) == count
    assert gaps(rows) == [("1000-0", None, "reset")]


def test_a_read_that_must_not_lose_stops_at_a_stream_that_was_made_anew(feed, read_once):
    feed.attempts(1, 1)

    with pytest.raises(EntriesLost, match="deleted, re-created or rolled back"):
        read_once(startingOffsets=json.dumps({feed.queue: "1000-0@1000"}))


@pytest.mark.parametrize(
    "place",
    [{"startingTimestamp": "1000"}, {"startingOffsets": '{"QUEUE": "5-0"}'}],
    ids=["a time", "an id"],
)
def test_where_the_server_does_not_count_a_place_that_was_chosen_is_no_loss(feed, options, place):
    feed.attempts(1, 1)
    chosen = {name: text.replace("QUEUE", feed.queue) for name, text in place.items()}
    parsed = parse_options(options | chosen)
    store = UncountingStore(parsed.connection)
    subscription = Subscription(parsed, HISTORY, store)

    start = subscription.start()
    end = subscription.planner.advance(start, [feed.queue], None, None)
    pieces = subscription.planner.ranges(start, end)
    store.close()

    assert {piece.loss for piece in pieces} == {""}


class CountingCalls(UncountingStore):
    """Tells how often the server was asked to measure, and for how many entries."""

    def __init__(self, *args):
        super().__init__(*args)
        self.counts: list[int] = []

    def measure(self, key, after_id, until_id, count, rows_max, rows_field):
        self.counts.append(count)
        return super().measure(key, after_id, until_id, count, rows_max, rows_field)


def test_where_the_server_does_not_count_entries_are_measured_and_read_in_pages(feed, options):
    feed.attempts(*[1] * 400)
    parsed = parse_options(options)
    store = CountingCalls(parsed.connection)
    planner = Planner(parsed, HISTORY, store)
    start = planner.firsts([feed.queue])

    end = planner.advance(start, [feed.queue], None, None)
    pieces = planner.ranges(start, end)
    store.close()

    assert min(store.counts) > 1
    assert sum(piece.found_count for piece in pieces) == 400
    assert {piece.entry_count for piece in pieces} == {None}


def test_a_loss_does_not_make_pages_longer(feed, history):
    feed.attempts(100)
    query = history(**GOES_ON, minPartitions="1")
    query.batch()
    feed.attempts(*[100] * 30)
    feed.trim(feed.keys.history, 3)

    query.batch()

    (part,) = query.tasks[0].ranges
    assert (part.entry_count, part.found_count, part.row_count) == (30, 3, 300)


def test_where_the_server_does_not_count_a_query_reads_on_batch_by_batch(feed, options):
    feed.attempts(*[2] * 5)
    parsed = parse_options(options | {"minPartitions": "1"})
    store = UncountingStore(parsed.connection)
    planner = Planner(parsed, HISTORY, store)
    offsets, rows = [planner.firsts([feed.queue])], []

    while len(offsets) < 2 or offsets[-1] != offsets[-2]:
        offsets.append(planner.advance(offsets[-1], [feed.queue], 4, None))
        rows.append(sum(one.row_count for one in planner.ranges(*offsets[-2:])))
    store.close()

    assert rows == [4, 4, 2, 0]


def test_where_the_server_does_not_count_a_stream_that_was_deleted_is_read_anew(feed, options):
    last = feed.attempts(1, 1)[-1]
    parsed = parse_options(options)
    store = UncountingStore(parsed.connection)
    planner = Planner(parsed, HISTORY, store)
    start = {feed.queue: Position(last)}
    feed.delete(feed.keys.history)
    gone = planner.advance(start, [feed.queue], None, None)
    feed.attempts(1)

    end = planner.advance(gone, [feed.queue], None, None)
    store.close()

    assert gone == start
    assert start[feed.queue].is_before(end[feed.queue].entry_id)
