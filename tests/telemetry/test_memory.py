"""The sink that remembers: totals, records, labels."""

import threading

from chasquimq.model.delivery import DlqReason
from chasquimq.telemetry.memory import InMemorySink
from chasquimq.telemetry.sink import (
    DlqRouted,
    JobOutcome,
    Labeled,
    LeaseLost,
    LockOutcome,
    PromoterTick,
    QueueLabeled,
    ReaderBatch,
    RetryScheduled,
    RowsDropped,
    StaleOutcomes,
    WorkerHealth,
)

OK = JobOutcome("ok", 1, 5, "mail")
ERROR = JobOutcome("err", 1, 5, "mail")
PANIC = JobOutcome("panic", 2, 5, "sms")
SNOOZE = JobOutcome("snoozed", 1, 5, "mail")


def test_runs_are_counted_by_how_they_ended_and_by_name():
    sink = InMemorySink()

    sink.job_outcomes([OK, OK, ERROR, PANIC, SNOOZE])

    assert (sink.jobs_completed(), sink.jobs_failed(), sink.handler_invocations()) == (2, 2, 5)
    assert (sink.jobs_failed("sms"), sink.handler_invocations("mail")) == (1, 4)
    assert (sink.jobs_snoozed(), sink.jobs_snoozed("sms")) == (1, 0)
    assert sink.jobs_completed("nobody") == 0


def test_burials_are_counted_by_reason():
    sink = InMemorySink()

    sink.dlqs_routed([DlqRouted(DlqReason.EXPIRED, 0), DlqRouted(DlqReason.MALFORMED, 0, "x")])

    assert (sink.dlq_count(), sink.dlq_count("expired"), sink.dlq_count(name="x")) == (2, 1, 1)


def test_everything_else_adds_up():
    sink = InMemorySink()

    sink.retries_scheduled([RetryScheduled(2, 10, "mail")])
    sink.promoter_tick(PromoterTick(3, 4, 0))
    sink.promoter_tick(PromoterTick(2, 2, 0))
    sink.reader_batch(ReaderBatch(10, 3))
    sink.lease_lost(LeaseLost(2))
    sink.stale_outcomes(StaleOutcomes(1, 4))
    sink.rows_dropped(RowsDropped(5, 6))

    assert (sink.total_retries(), sink.total_retries("sms"), sink.promoted_total()) == (1, 0, 5)
    assert (sink.entries_read(), sink.entries_reclaimed(), sink.leases_lost()) == (10, 3, 2)
    assert (sink.outcomes_stale(), sink.outcomes_unproven()) == (1, 4)
    assert (sink.events_dropped(), sink.history_rows_dropped()) == (5, 6)


def test_locks_are_counted_by_change_and_role():
    sink = InMemorySink()

    sink.lock_outcome(LockOutcome("promoter", is_acquired=True))
    sink.lock_outcome(LockOutcome("promoter", is_acquired=False))
    sink.lock_outcome(LockOutcome("scheduler", is_acquired=True))

    assert (sink.locks_acquired(), sink.locks_acquired("scheduler")) == (2, 1)
    assert (sink.locks_lost(), sink.locks_lost("scheduler")) == (1, 0)


def test_records_are_kept_in_order_and_found_by_kind():
    sink = InMemorySink()
    health = WorkerHealth(is_consuming=True, has_trusted_leases=True)

    sink.job_outcome(OK)
    sink.worker_health(health)
    sink.job_outcome(ERROR)

    assert sink.records(JobOutcome) == [OK, ERROR]
    assert sink.records(WorkerHealth) == [health]


def test_the_oldest_records_go_first_and_totals_stay():
    sink = InMemorySink(records_max=2)

    sink.job_outcomes([PANIC, OK, ERROR])

    assert sink.records(JobOutcome) == [OK, ERROR]
    assert sink.handler_invocations() == 3


def test_a_question_with_labels_is_answered_for_records_that_have_them():
    sink = InMemorySink()

    Labeled(QueueLabeled(sink, "emails"), region="eu").job_outcome(OK)
    QueueLabeled(sink, "emails").job_outcome(OK)
    QueueLabeled(sink, "sms").job_outcome(PANIC)

    assert (sink.jobs_completed(queue="emails"), sink.jobs_completed(region="eu")) == (2, 1)
    assert (sink.jobs_failed(queue="emails"), sink.handler_invocations()) == (0, 3)
    assert sink.records(JobOutcome, queue="sms") == [PANIC]


def test_totals_hold_when_several_threads_count():
    sink = InMemorySink()
    threads = [threading.Thread(target=lambda: sink.job_outcomes([OK] * 500)) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sink.jobs_completed() == 2_000
