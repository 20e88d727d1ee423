"""What was given up is told once, whoever gave it up."""

from types import SimpleNamespace

from chasquimq.engine.reporter import Reporter
from chasquimq.telemetry.memory import InMemorySink
from chasquimq.telemetry.sink import RowsDropped, WorkerHealth

HEALTH = WorkerHealth(is_consuming=True, has_trusted_leases=True, running=3)


def writers(**dropped):
    return [(channel, SimpleNamespace(dropped_count=count)) for channel, count in dropped.items()]


def test_only_what_was_dropped_since_the_last_time_is_told():
    sink, wrote = InMemorySink(), writers(events=0, history=2)
    reporter = Reporter(sink, lambda: HEALTH, wrote)

    reporter.run_once()
    reporter.run_once()
    wrote[0][1].dropped_count = 5
    reporter.run_once()

    assert sink.records(RowsDropped) == [RowsDropped(0, 2), RowsDropped(5, 0)]
    assert sink.records(WorkerHealth) == [HEALTH] * 3


def test_writers_of_one_channel_are_added_up():
    sink = InMemorySink()

    Reporter(sink, lambda: HEALTH, [*writers(events=1), *writers(events=2)]).run_once()

    assert sink.records(RowsDropped) == [RowsDropped(3, 0)]


def test_where_nothing_is_dropped_nothing_is_told():
    sink = InMemorySink()

    Reporter(sink, lambda: HEALTH, writers(events=0)).run_once()

    assert sink.records(RowsDropped) == []
