"""The port: records that cannot be out of range, and sinks that hear what they ask for."""

import inspect

import pytest

from chasquimq.errors import SettingsError
from chasquimq.model.delivery import DlqReason
from chasquimq.telemetry import sink as port
from chasquimq.telemetry.memory import InMemorySink
from chasquimq.telemetry.sink import (
    BATCHES,
    RECORD_METHODS,
    U32_MAX,
    U64_MAX,
    DlqRouted,
    GroupRecreated,
    JobOutcome,
    LeaseLost,
    LockOutcome,
    MetricsSink,
    NoopSink,
    PromoterTick,
    QueueLabeled,
    ReaderBatch,
    RetryScheduled,
    RowsDropped,
    SafeSink,
    StaleOutcomes,
    WorkerHealth,
    is_noop,
    listens,
)

RECORDS = {
    "promoter_tick": PromoterTick(promoted=2, depth=5, oldest_pending_lag_ms=7),
    "lock_outcome": LockOutcome("promoter", is_acquired=True),
    "reader_batch": ReaderBatch(size=3, reclaimed=1),
    "job_outcome": JobOutcome("ok", 1, 12, "mail", 5),
    "retry_scheduled": RetryScheduled(2, 100, "mail"),
    "dlq_routed": DlqRouted(DlqReason.UNRECOVERABLE, 1, "mail"),
    "lease_lost": LeaseLost(1),
    "stale_outcomes": StaleOutcomes(stale=1, unproven=2),
    "rows_dropped": RowsDropped(events=1, history=2),
    "group_recreated": GroupRecreated(1),
    "worker_health": WorkerHealth(is_consuming=True, has_trusted_leases=True),
}


class Listening(MetricsSink):
    """Hears of single job outcomes and nothing else."""

    def __init__(self):
        self.heard = []

    def job_outcome(self, outcome):
        self.heard.append(outcome)


def test_every_happening_is_a_batch_or_has_a_record():
    assert set(RECORD_METHODS) == RECORDS.keys() | BATCHES.keys()


@pytest.mark.parametrize("happening", RECORDS)
def test_a_sink_that_overrides_nothing_takes_every_record(happening):
    getattr(MetricsSink(), happening)(RECORDS[happening])


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_record_cannot_be_changed(record):
    with pytest.raises(AttributeError):
        setattr(record, record.__struct_fields__[0], None)


@pytest.mark.parametrize(("batched", "single"), BATCHES.items())
def test_a_batch_is_given_singly_to_a_sink_that_does_not_override_it(batched, single):
    heard = []
    sink = MetricsSink()
    setattr(sink, single, heard.append)

    getattr(sink, batched)([RECORDS[single], RECORDS[single]])

    assert heard == [RECORDS[single]] * 2


@pytest.mark.parametrize(
    ("number", "kept"), [(-1, 0), (0, 0), (U64_MAX, U64_MAX), (U64_MAX + 1, U64_MAX)]
)
@pytest.mark.parametrize(
    ("made", "field"),
    [
        (lambda n: PromoterTick(n, 0, 0), "promoted"),
        (lambda n: PromoterTick(0, 0, n), "oldest_pending_lag_ms"),
        (lambda n: ReaderBatch(n, 0), "size"),
        (lambda n: JobOutcome("ok", 1, n), "handler_duration_us"),
        (lambda n: JobOutcome("ok", 1, 0, "", n), "wait_us"),
        (lambda n: RetryScheduled(1, n), "backoff_ms"),
        (LeaseLost, "count"),
        (lambda n: StaleOutcomes(n, 0), "stale"),
        (lambda n: RowsDropped(n, 0), "events"),
        (GroupRecreated, "count"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_number_out_of_range_becomes_the_nearest_one_in_it(made, field, number, kept):
    assert getattr(made(number), field) == kept


@pytest.mark.parametrize(
    "made",
    [
        lambda n: JobOutcome("err", n, 1),
        lambda n: RetryScheduled(n, 1),
        lambda n: DlqRouted(DlqReason.EXPIRED, n),
    ],
    ids=["outcome", "retry", "dlq"],
)
def test_attempts_saturate_at_32_bits(made):
    assert [made(n).attempt for n in (-3, 2, U32_MAX + 1)] == [0, 2, U32_MAX]


def test_an_unknown_wait_stays_unknown():
    assert JobOutcome("ok", 1, 5).wait_us is None


def test_a_noop_sink_and_none_at_all_are_noops():
    assert is_noop(NoopSink())
    assert is_noop(MetricsSink())
    assert is_noop(None)


@pytest.mark.parametrize("sink", [Listening(), InMemorySink()], ids=lambda s: type(s).__name__)
def test_a_sink_that_listens_is_no_noop(sink):
    assert not is_noop(sink)


@pytest.mark.parametrize("wrap", [SafeSink, lambda sink: QueueLabeled(sink, "q")])
def test_wrapping_a_sink_does_not_change_what_it_listens_to(wrap):
    assert is_noop(wrap(NoopSink()))
    heard = {happening for happening in RECORD_METHODS if listens(wrap(Listening()), happening)}
    assert heard == {"job_outcome", "job_outcomes"}


def test_only_a_metrics_sink_is_taken_for_one():
    with pytest.raises(SettingsError, match="metrics must be a MetricsSink"):
        SafeSink(object())


def test_the_port_waits_for_nothing():
    assert "asyncio" not in inspect.getsource(port)
