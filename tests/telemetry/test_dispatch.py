"""A sink that raises harms nobody and does not fill the log."""

import asyncio
import logging
import time

import pytest

from chasquimq.model.log import LogThrottle
from chasquimq.telemetry.memory import InMemorySink
from chasquimq.telemetry.sink import (
    JobOutcome,
    MetricsSink,
    NoopSink,
    ReaderBatch,
    SafeSink,
    TimeBudget,
    both_sinks,
    safe_sink,
)

OK = JobOutcome("ok", 1, 5, "mail")
BATCH = ReaderBatch(1, 0)


class Raising(MetricsSink):
    """Raises what it is told to, but for names it likes."""

    def __init__(self, error=ValueError, likes=()):
        self.error = error
        self.likes = likes
        self.heard = []

    def job_outcome(self, outcome):
        self.heard.append(outcome)
        if outcome.name not in self.likes:
            raise self.error("no")

    def reader_batch(self, batch):
        raise self.error("no")


class Batched(MetricsSink):
    def __init__(self):
        self.heard = []

    def job_outcomes(self, batch):
        self.heard.append(batch)


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, RecursionError])
def test_what_a_sink_raises_ends_at_the_sink(error):
    safe = SafeSink(Raising(error))

    safe.reader_batch(BATCH)
    safe.job_outcomes([OK])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_wish_to_leave_is_not_swallowed(error):
    with pytest.raises(error):
        SafeSink(Raising(error)).reader_batch(BATCH)


def test_a_sink_that_raises_for_one_record_hears_the_rest_of_the_batch():
    sink = Raising(likes=("mail",))

    SafeSink(sink).job_outcomes([OK, JobOutcome("ok", 1, 5, "bad"), OK])

    assert [outcome.name for outcome in sink.heard] == ["mail", "bad", "mail"]


def test_a_sink_that_takes_batches_gets_them_whole():
    sink = Batched()

    SafeSink(sink).job_outcomes([OK, OK])

    assert sink.heard == [[OK, OK]]


def test_a_raising_sink_is_logged_once(caplog):
    safe = SafeSink(Raising())

    with caplog.at_level(logging.DEBUG, "chasquimq"):
        safe.job_outcomes([OK] * 1_000)
        safe.reader_batch(BATCH)

    (line,) = caplog.records
    assert (line.chasqui_sink, line.chasqui_method) == ("Raising", "job_outcomes")
    assert line.getMessage() == (
        "the metrics sink Raising raised in job_outcomes, and its record was dropped"
    )
    assert line.exc_info[0] is ValueError


def test_a_sink_that_goes_on_raising_is_logged_at_a_slower_pace(caplog):
    clock = Clock()
    safe = SafeSink(Raising(), throttle=LogThrottle(clock))

    for _ in range(4 * 3_600):
        safe.reader_batch(BATCH)
        clock.now_s += 1

    ends = [line.getMessage().partition("was dropped")[2] for line in caplog.records]
    assert ends == [
        "",
        "; 59 more like it were not logged in the 60 s before",
        *(
            f"; {count - 1:,} more like it were not logged in the {count:,} s before"
            for count in (120, 240, 480, 960, 1_920, 3_600, 3_600)
        ),
    ]


def test_two_sinks_hear_everything_and_one_that_raises_keeps_nothing_from_the_other(caplog):
    first, second = InMemorySink(), InMemorySink()
    both = both_sinks(both_sinks(safe_sink(first), Raising()), second)

    both.job_outcomes([OK] * 3)
    both.reader_batch(BATCH)

    assert (first.jobs_completed(), second.jobs_completed()) == (3, 3)
    assert first.entries_read() == second.entries_read() > 0
    assert len(caplog.records) == 1


def test_a_sink_beside_one_that_listens_to_nothing_is_alone():
    assert both_sinks(None, NoopSink()) is None
    alone = safe_sink(InMemorySink())
    assert both_sinks(alone, NoopSink()) is alone


class Slow(MetricsSink):
    """Takes its time for everything."""

    def __init__(self, seconds):
        self.seconds = seconds

    def reader_batch(self, batch):
        time.sleep(self.seconds)


def test_a_sink_that_stops_everything_for_long_is_logged_once(caplog):
    safe = SafeSink(Slow(0.25))

    safe.reader_batch(BATCH)
    safe.reader_batch(BATCH)

    (line,) = caplog.records
    assert (line.chasqui_sink, line.chasqui_method) == ("Slow", "reader_batch")
    assert "more than a fifth of the worker's time" in line.getMessage()


@pytest.mark.parametrize(
    ("calls", "is_told"), [pytest.param(190, False, id="below"), pytest.param(201, True, id="over")]
)
def test_many_short_stretches_weigh_as_much_as_a_long_one(calls, is_told):
    burden, ms = TimeBudget(), 1_000_000
    now_ns = 5_000 * ms

    told = [
        burden.is_too_much(now_ns + 3 * at * ms, now_ns + (3 * at + 1) * ms) for at in range(calls)
    ]

    assert any(told) == is_told


def test_what_was_spent_a_second_ago_weighs_no_more():
    burden, ms = TimeBudget(), 1_000_000

    told = [burden.is_too_much(at * 1_001 * ms, (at * 1_001 + 150) * ms) for at in range(1, 9)]

    assert not any(told)
