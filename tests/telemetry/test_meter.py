"""What the engine tells a sink: a record for what happened, in batches, and none for what did not."""

import pytest

from chasquimq.engine.metrics_listener import MetricsListener
from chasquimq.model.delivery import (
    Burying,
    Completing,
    Delivery,
    DlqReason,
    Failure,
    RejectedEntry,
    Retrying,
)
from chasquimq.telemetry.memory import InMemorySink
from chasquimq.telemetry.sink import DlqRouted, JobOutcome, RetryScheduled, StaleOutcomes

BROKEN = RejectedEntry(b"5-0", DlqReason.MALFORMED, "", "", b"")
FAILURE = Failure("ValueError", "no")
CRASH = Failure("ChildDied", "exit code 7")


class Batches(InMemorySink):
    """Also knows how the outcomes came."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def job_outcomes(self, batch):
        self.sizes.append(len(batch))
        super().job_outcomes(batch)


@pytest.fixture
def sink():
    return Batches()


@pytest.fixture
def meter(sink):
    return MetricsListener(sink, at_ms=lambda monotonic_ns: 1_000 + monotonic_ns / 1_000_000)


def delivery(*, started_ns=1, name="mail", spent=0):
    return Delivery(
        entry_id=b"1000-0", job_id="j", name=name, payload=b"", created_at_ms=0, spent=spent,
        earlier=0, retry=None, extras=None, due_ms=None, envelope=b"", started_ns=started_ns,
        duration_us=7,
    )  # fmt: skip


def every_move():
    """One of each way an attempt can end, with what its run was, None where there was none."""
    return {
        "completed": (delivery(), "ok"),
        "completed with a result": (Completing(delivery(), b"1"), "ok"),
        "failed": (Retrying(delivery(), 5, 1, None, FAILURE), "err"),
        "asked to come back": (Retrying(delivery(), 5, 0, None, FAILURE), "snoozed"),
        "unknown name": (Retrying(delivery(started_ns=0), 5, 0, None, FAILURE), None),
        "given up": (Burying(delivery(), DlqReason.UNRECOVERABLE, 1, FAILURE), "err"),
        "crashed": (Burying(delivery(), DlqReason.RETRIES_EXHAUSTED, 1, CRASH), "panic"),
        "refused": (Burying(delivery(started_ns=0), DlqReason.CRASH_LOOP, 3), None),
        "unknown for too long": (
            Burying(delivery(started_ns=0), DlqReason.UNKNOWN_NAME, 0, FAILURE), None,
        ),
        "unreadable": (Burying(BROKEN, DlqReason.MALFORMED, 0), None),
    }  # fmt: skip


@pytest.mark.parametrize("end", every_move())
@pytest.mark.parametrize("is_unproven", [False, True])
def test_a_dispute_is_about_a_run_only_where_there_was_one(meter, sink, end, is_unproven):
    move, kind = every_move()[end]

    meter.disputed([move], is_unproven=is_unproven)

    assert [one.kind for one in sink.records(JobOutcome)] == ([] if kind is None else [kind])
    assert sink.records(StaleOutcomes) == [StaleOutcomes(not is_unproven, is_unproven)]


def test_disputes_come_in_one_batch(meter, sink):
    moves = [move for move, _ in every_move().values()]

    meter.disputed(moves, is_unproven=False)

    assert sink.sizes == [6]
    assert sink.records(StaleOutcomes) == [StaleOutcomes(10, 0)]


@pytest.mark.parametrize("end", ["failed", "asked to come back", "unknown name"])
def test_every_job_that_waits_again_is_told_with_its_next_run(meter, sink, end):
    move, kind = every_move()[end]

    meter.retried([move])

    assert [one.kind for one in sink.records(JobOutcome)] == ([] if kind is None else [kind])
    assert sink.records(RetryScheduled) == [RetryScheduled(move.spent + 1, 5, "mail")]


@pytest.mark.parametrize(
    ("end", "attempt"),
    [
        ("given up", 1), ("crashed", 1), ("refused", 0), ("unknown for too long", 0),
        ("unreadable", 0),
    ],
)  # fmt: skip
def test_a_burial_names_the_run_that_gave_up_or_none(meter, sink, end, attempt):
    move, kind = every_move()[end]

    meter.buried([move])

    assert [one.kind for one in sink.records(JobOutcome)] == ([] if kind is None else [kind])
    assert [one.attempt for one in sink.records(DlqRouted)] == [attempt]


def test_a_sink_is_not_called_for_a_batch_without_runs(meter, sink):
    meter.buried([every_move()["unreadable"][0]])

    assert sink.sizes == []


def test_a_run_has_its_number_its_time_and_its_wait(meter, sink):
    meter.completed([delivery(started_ns=2_000_000, spent=2)])

    assert sink.records(JobOutcome) == [JobOutcome("ok", 3, 7, "mail", 2_000)]
