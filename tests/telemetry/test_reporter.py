"""What was given up is told once, whoever gave it up."""

from chasquimq.engine.metrics_listener import HealthReporter
from chasquimq.telemetry.memory import InMemorySink
from chasquimq.telemetry.sink import GroupRecreated, RowsDropped, WorkerHealth

HEALTH = WorkerHealth(is_consuming=True, has_trusted_leases=True, running=3)


def losses(**lost):
    return [(channel, lambda count=count: count) for channel, count in lost.items()]


def test_only_what_was_dropped_since_the_last_time_is_told():
    sink, events = InMemorySink(), [0]
    reporter = HealthReporter(
        sink, lambda: HEALTH, [("events", lambda: events[0]), *losses(history=2)]
    )

    reporter.run_once()
    reporter.run_once()
    events[0] = 5
    reporter.run_once()

    assert sink.records(RowsDropped) == [RowsDropped(0, 2), RowsDropped(5, 0)]
    assert sink.records(WorkerHealth) == [HEALTH] * 3


def test_writers_of_one_channel_are_added_up():
    sink = InMemorySink()

    HealthReporter(sink, lambda: HEALTH, [*losses(events=1), *losses(events=2)]).run_once()

    assert sink.records(RowsDropped) == [RowsDropped(3, 0)]


def test_what_may_be_missing_is_told_apart_from_what_is():
    sink = InMemorySink()

    HealthReporter(sink, lambda: HEALTH, losses(events=1, events_unproven=2)).run_once()

    assert (sink.events_dropped(), sink.events_unproven()) == (1, 2)


def test_where_nothing_is_dropped_nothing_is_told():
    sink = InMemorySink()

    HealthReporter(sink, lambda: HEALTH, losses(events=0)).run_once()

    assert sink.records(RowsDropped) == []


def test_a_group_that_was_made_again_is_told_once():
    sink, made = InMemorySink(), [0]
    reporter = HealthReporter(sink, lambda: HEALTH, [], lambda: made[0])

    reporter.run_once()
    made[0] = 2
    reporter.run_once()
    reporter.run_once()

    assert sink.records(GroupRecreated) == [GroupRecreated(2)]
