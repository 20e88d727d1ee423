"""The parts of a pipeline that need a server but no JVM: samples, backlog, channels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from chasquimq.errors import NotSupportedError, ServerRefused, SettingsError
from chasquimq.model.forecast import Sample
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.lake.files import write_table
from chasquimq.spark.lake.lake import Change, Lake
from chasquimq.spark.pipeline.backlog import Backlog
from chasquimq.spark.pipeline.channels import Channels, by_channel
from chasquimq.spark.pipeline.pipeline import Pipeline
from chasquimq.spark.pipeline.sampler import ServerSampler, alive_names
from chasquimq.spark.pipeline.settings import PipelineSettings
from chasquimq.store.inspect.ranges import RangeStore
from support.rows import DAY, batch
from support.waiting import eventually


@pytest.fixture
def sampler(url):
    sampler = ServerSampler(ConnectionSettings(url=url))
    yield sampler
    sampler.close()


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create_missing()
    return lake


async def work(job) -> None:
    return


async def test_a_sample_tells_how_much_is_where(queue, queue_name, sampler):
    for number in range(4):
        await queue.add("send", number)
    await queue.add("send", 9, delay_ms=60_000)

    (sample,) = sampler.sample([queue_name])

    assert (sample.ready, sample.running, sample.delayed, sample.dlq) == (4, 0, 1, 0)
    assert (sample.added, sample.left, sample.consumers) == (4, 0, 0)
    assert 0 <= sample.oldest_ms < 60_000


async def test_a_sample_counts_what_has_left(queue, queue_name, sampler, running_worker):
    await queue.add("send", 1)
    running = await running_worker(work)
    await eventually(lambda: sampler.sample([queue_name])[0].left == 1, what="a job that left")

    (sample,) = sampler.sample([queue_name])

    assert (sample.added, sample.ready, sample.consumers) == (1, 0, 1)
    assert sampler.alive_workers([queue_name]) == {(queue_name, running.worker.consumer_id)}


async def test_workers_of_every_group_are_alive(queue, queue_name, sampler, raw):
    await queue.add("send", 1)
    # Some servers need the usual group before a queue can add.
    await raw("XGROUP", "DESTROY", raw.keys.stream, "default")
    for group, worker in (("billing", "w1"), ("mail", "w2")):
        await raw("XGROUP", "CREATE", raw.keys.stream, group, "0")
        await raw("XREADGROUP", "GROUP", group, worker, "COUNT", 1, "STREAMS", raw.keys.stream, ">")

    (sample,) = sampler.sample([queue_name])

    assert sampler.alive_workers([queue_name]) == {(queue_name, "w1"), (queue_name, "w2")}
    assert (sample.consumers, sample.ready, sample.running) == (2, 0, 1)


def consumer(name: str, idle_s: int, pending: int = 0) -> list:
    return [b"name", name.encode(), b"pending", pending, b"idle", idle_s * 1_000]


@pytest.mark.parametrize(
    ("row", "is_alive"),
    [
        (consumer("w", 29), True),
        (consumer("w", 31), False),
        (consumer("w", 100, pending=1), True),
        (consumer("w", 900, pending=1), False),
    ],
    ids=["reads", "reads no more", "holds a job with a long lease", "left a job behind"],
)
def test_whoever_holds_jobs_may_be_silent_for_longer(row, is_alive):
    assert alive_names([row]) == (["w"] if is_alive else [])


def test_a_queue_that_is_not_there_is_empty(queue_name, sampler):
    (sample,) = sampler.sample([queue_name])

    assert (sample.ready, sample.added, sample.left, sample.oldest_ms) == (0, 0, 0, None)


def sampled(at_s: int, added: int | None, left: int | None, queue: str = "mail") -> Sample:
    depth = 0 if added is None or left is None else added - left
    return Sample(
        queue=queue, at_ms=1_794_830_400_000 + at_s * 1_000, ready=depth, running=0, delayed=0,
        dlq=0, added=added, left=left, oldest_ms=None, consumers=1,
    )  # fmt: skip


def deltas(rows) -> list[tuple[int | None, int | None]]:
    found = rows["gold_backlog"].to_pylist()
    return [(row["arrived"], row["finished"]) for row in found]


def test_each_row_tells_what_happened_since_the_row_before_it(lake):
    backlog = Backlog(lake, {})
    backlog.add([sampled(0, 10, 4), sampled(0, 1, 1, "other"), sampled(1, 15, 12)])

    assert deltas(backlog.rows()) == [(None, None), (None, None), (5, 8)]
    assert backlog.rows() == {}


def test_the_first_row_after_a_restart_goes_on_from_the_last_one_of_the_table(lake):
    first = Backlog(lake, {})
    first.add([sampled(0, 10, 4)])
    for name, rows in first.rows().items():
        lake.commit(Change(table=name, adds=write_table(lake.path, name, rows, "test")))

    later = Backlog(lake, {})
    later.add([sampled(60, 30, 29)])

    assert deltas(later.rows()) == [(20, 25)]


def test_a_counter_that_began_anew_or_is_not_there_tells_nothing(lake):
    backlog = Backlog(lake, {})
    backlog.add([sampled(0, 10, 4), sampled(1, 2, 1), sampled(2, None, None), sampled(3, 5, 5)])

    assert deltas(backlog.rows()) == [(None, None)] * 4


def test_the_last_sample_of_a_queue_makes_its_forecast(lake):
    backlog = Backlog(lake, {"send": 1_000})
    backlog.add([sampled(0, 0, 0), sampled(10, 200, 100), sampled(10, 7, 7, "other")])

    rows = {row["queue"]: row for row in backlog.rows()["gold_forecast"].to_pylist()}

    assert (rows["mail"]["arrival_rate"], rows["mail"]["departure_rate"]) == (20.0, 10.0)
    assert rows["mail"]["never_clears"] is True
    assert rows["mail"]["workers_needed"] == 2
    assert rows["other"]["arrival_rate"] is None


def test_seldom_looks_make_a_forecast_too(lake):
    backlog = Backlog(lake, {})
    for at_s in (0, 300, 600):
        backlog.add([sampled(at_s, at_s * 2, at_s)])
        rows = backlog.rows()

    (row,) = rows["gold_forecast"].to_pylist()

    assert (row["arrival_rate"], row["departure_rate"]) == (2.0, 1.0)


def had_names(lake: Lake, queue: str, *names: str) -> None:
    """Attempts of these names were counted on the day."""
    at = datetime.fromtimestamp(1_794_830_400, UTC)
    told = {"queue": queue, "window_start": at, "event_date": at.date()}
    rows = batch("gold_minute", *(told | {"name": name} for name in names))
    files = write_table(lake.path, "gold_minute", rows, "test")
    lake.commit(Change(table="gold_minute", adds=files))


@pytest.mark.parametrize(
    ("targets", "names", "breach_s"),
    [
        ({"fast": 1_000, "report": 60_000}, ["report"], 60),
        ({"fast": 1_000, "report": 60_000}, ["report", "fast"], 10),
        ({"fast": 1_000, "*": 60_000}, ["report"], 60),
        ({"fast": 1_000}, ["report"], None),
        ({"fast": 1_000}, [], None),
        ({"*": 60_000}, [], 60),
    ],
    ids=["of its own name", "of the strictest", "of all others", "of none", "unknown", "of all"],
)
def test_a_queue_is_held_against_the_targets_of_the_names_in_it(lake, targets, names, breach_s):
    had_names(lake, "other", "fast")
    had_names(lake, "mail", *names) if names else None
    backlog = Backlog(lake, targets)
    # Ten a second leave and twenty arrive: 100 wait, and in 50 s it will be 600.
    backlog.add([sampled(0, 0, 0), sampled(10, 200, 100)])

    (row,) = backlog.rows()["gold_forecast"].to_pylist()

    made_at = datetime.fromtimestamp(1_794_830_410, UTC)
    expected = {60: made_at + timedelta(seconds=50), 10: made_at, None: None}
    assert row["breach_at"] == expected[breach_s]


@pytest.fixture
def channels(url, tmp_path):
    """Decides for the queues of a lake, with the settings that a test names."""
    store = RangeStore(ConnectionSettings(url=url))

    def decide(**settings) -> dict[str, str]:
        chosen = PipelineSettings(lake=tmp_path, connection=ConnectionSettings(url=url), **settings)
        return Channels(tmp_path, chosen, store).decide()

    yield decide
    store.close()


def old_event(feed) -> None:
    """An event that no history can be expected to follow any more."""
    feed.call("XADD", feed.keys.events, "5-0", "e", "completed", "id", "a", "ts", "5")


def test_a_queue_with_a_history_is_read_from_it(feed, channels):
    feed.attempts(1)
    old_event(feed)

    assert channels(queues=(feed.queue,)) == {feed.queue: "history"}


def test_a_queue_with_events_alone_is_read_from_them(feed, channels):
    old_event(feed)

    assert channels(queues=(feed.queue,)) == {feed.queue: "events"}


def test_young_events_may_yet_be_followed_by_a_history(feed, channels):
    feed.events(1)

    undecided = channels(queues=(feed.queue,))
    feed.attempts(1)

    assert undecided == {}
    assert channels(queues=(feed.queue,)) == {feed.queue: "history"}


def test_a_handler_that_takes_long_does_not_decide_for_the_events(feed, channels):
    feed.call("XADD", feed.keys.events, "5-0", "e", "waiting", "id", "a", "ts", "5")
    feed.call("XADD", feed.keys.events, "6-0", "e", "active", "id", "a", "ts", "5")

    undecided = channels(queues=(feed.queue,))
    feed.attempts(1)

    assert undecided == {}
    assert channels(queues=(feed.queue,)) == {feed.queue: "history"}


def test_an_end_is_found_behind_many_jobs_that_wait(feed, channels):
    for at in range(1, 1_100):
        feed.call("XADD", feed.keys.events, f"{at}-0", "e", "waiting", "id", f"j{at}")
    feed.call("XADD", feed.keys.events, "2000-0", "e", "failed", "id", "a", "ts", "5")
    feed.call("XADD", feed.keys.events, "*", "e", "active", "id", "b", "ts", "5")

    assert channels(queues=(feed.queue,)) == {feed.queue: "events"}


def test_a_choice_is_kept_when_the_other_channel_comes_to_be(feed, channels):
    old_event(feed)
    channels(queues=(feed.queue,))
    feed.attempts(1)

    assert channels(queues=(feed.queue,)) == {feed.queue: "events"}


@pytest.mark.parametrize(
    ("table", "channel"), [("bronze_events", "events"), ("bronze_attempts", "history")]
)
def test_a_choice_that_was_lost_is_learned_from_the_rows_of_the_lake(
    feed, channels, tmp_path, table, channel
):
    feed.attempts(1)
    old_event(feed)
    lake = Lake(tmp_path)
    lake.create_missing()
    rows = batch(table, {"queue": feed.queue, "event_date": DAY})
    lake.commit(Change(table=table, adds=write_table(tmp_path, table, rows, "test")))

    assert channels(queues=(feed.queue,)) == {feed.queue: channel}
    assert channels(queues=(feed.queue,)) == {feed.queue: channel}


def test_to_ask_for_the_other_channel_is_refused(feed, channels):
    feed.attempts(1)
    channels(queues=(feed.queue,))

    with pytest.raises(SettingsError, match="channel must be history, got 'events'"):
        channels(queues=(feed.queue,), channel="events")


def test_without_names_every_queue_is_found(feeds, channels, queue_name):
    first, second = feeds(f"{queue_name}-1"), feeds(f"{queue_name}-2")
    first.attempts(1)
    old_event(second)

    found = channels()

    assert found[first.queue] == "history"
    assert found[second.queue] == "events"


def test_a_key_of_somebody_else_that_looks_like_a_queue_stops_no_other(feeds, channels, queue_name):
    first, strange = feeds(f"{queue_name}-1"), feeds(f"{queue_name}-2")
    first.attempts(1)
    old_event(strange)
    strange.call("SET", strange.keys.history, "no stream")

    found = channels()

    assert found[first.queue] == "history"
    assert strange.queue not in found
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        channels(queues=[strange.queue])
    strange.call("DEL", strange.keys.history)


def test_queues_are_grouped_by_their_channel():
    assert by_channel({"b": "history", "a": "history", "c": "events"}) == {
        "history": ["a", "b"],
        "events": ["c"],
    }


def test_a_session_of_connect_is_refused_in_a_sentence(tmp_path):
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()

    with pytest.raises(NotSupportedError, match="must have a master"):
        Pipeline(remote, PipelineSettings(lake=tmp_path))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"channel": "both"}, "channel must be one of"),
        ({"queues": ("a b",)}, "queue name"),
        ({"slo": {"send": 0}}, "slo send must be at least 1"),
        ({"trigger_s": 0}, "trigger_s must be at least 0.1"),
        ({"max_rows_per_batch": 10}, "max_rows_per_batch must be at least 1000"),
        ({"slo_allowed_share": 1.0}, "slo_allowed_share must be between 0 and 1"),
        ({"compact_every": 0}, "compact_every must be at least 1"),
    ],
    ids=["channel", "queue", "slo", "trigger", "batch", "share", "compaction"],
)
def test_a_wrong_setting_is_refused_by_name(wrong, message):
    with pytest.raises(SettingsError, match=message):
        PipelineSettings(**wrong)
