"""What a scrape sees: names and units of the original, nothing twice, a bounded number of series."""

import threading

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from chasquimq.errors import SettingsError
from chasquimq.model.delivery import DlqReason
from chasquimq.telemetry.families import FAMILIES
from chasquimq.telemetry.prometheus import PrometheusSink
from chasquimq.telemetry.sink import (
    DlqRouted,
    GroupRecreated,
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

ORIGINAL = {
    "chasquimq_promoter_promoted_total": "counter",
    "chasquimq_delayed_zset_depth": "gauge",
    "chasquimq_promoter_oldest_pending_lag_ms": "gauge",
    "chasquimq_promoter_lock_acquired_total": "counter",
    "chasquimq_promoter_lock_lost_total": "counter",
    "chasquimq_consumer_batch_size": "histogram",
    "chasquimq_consumer_reclaimed_total": "counter",
    "chasquimq_handler_duration_seconds": "histogram",
    "chasquimq_jobs_completed_total": "counter",
    "chasquimq_jobs_failed_total": "counter",
    "chasquimq_retries_scheduled_total": "counter",
    "chasquimq_retry_backoff_seconds": "histogram",
    "chasquimq_dlq_routed_total": "counter",
}


@pytest.fixture
def sink():
    return PrometheusSink(registry=CollectorRegistry())


def samples(sink, metric, /, **labels):
    """The values of a metric, by the labels that were not asked for."""
    found = {}
    for family in text_string_to_metric_families(sink.exposition().decode()):
        for sample in family.samples:
            if sample.name == metric and labels.items() <= sample.labels.items():
                rest = tuple(value for key, value in sample.labels.items() if key not in labels)
                assert rest not in found, "a sample is shown twice"
                found[rest] = sample.value
    return found


def value(sink, metric, /, **labels):
    (only,) = samples(sink, metric, **labels).values()
    return only


def runs(*kinds, name="mail", duration_us=5_000, wait_us=20_000):
    return [JobOutcome(kind, 1, duration_us, name, wait_us) for kind in kinds]


def test_every_metric_of_the_original_is_here_under_its_name():
    ours = {family.name: family.kind for family in FAMILIES}

    assert {name: ours.get(name) for name in ORIGINAL} == ORIGINAL


def test_runs_are_counted_by_name_and_by_how_they_failed(sink):
    sink.job_outcomes(runs("ok", "ok", "err", "panic"))

    assert value(sink, "chasquimq_jobs_completed_total", name="mail") == 2
    assert samples(sink, "chasquimq_jobs_failed_total", name="mail") == {
        ("error",): 1,
        ("panic",): 1,
    }


def test_a_snooze_is_counted_apart_and_its_time_with_the_others(sink):
    sink.job_outcomes(runs("ok", "snoozed", "snoozed"))

    assert value(sink, "chasquimq_jobs_snoozed_total", name="mail") == 2
    assert value(sink, "chasquimq_jobs_completed_total", name="mail") == 1
    assert samples(sink, "chasquimq_jobs_failed_total") == {}
    assert value(sink, "chasquimq_handler_duration_seconds_count", name="mail") == 3


def test_durations_are_shown_in_seconds(sink):
    sink.job_outcomes(runs("ok", "err", duration_us=5_000))

    assert value(sink, "chasquimq_handler_duration_seconds_count", name="mail") == 2
    assert value(sink, "chasquimq_handler_duration_seconds_sum") == pytest.approx(0.01)
    assert value(sink, "chasquimq_handler_duration_seconds_bucket", le="0.0025") == 0
    assert value(sink, "chasquimq_handler_duration_seconds_bucket", le="0.005") == 2
    assert value(sink, "chasquimq_handler_duration_seconds_bucket", le="+Inf") == 2


def test_waits_are_shown_in_seconds_and_unknown_ones_left_out(sink):
    sink.job_outcomes([*runs("ok", wait_us=2_000_000), *runs("ok", wait_us=None)])

    assert value(sink, "chasquimq_job_wait_seconds_count", name="mail") == 1
    assert value(sink, "chasquimq_job_wait_seconds_sum") == 2.0


def test_a_single_outcome_counts_like_a_batch_of_one(sink):
    sink.job_outcome(runs("ok")[0])

    assert value(sink, "chasquimq_jobs_completed_total") == 1


def test_a_batch_may_hold_many_names(sink):
    sink.job_outcomes([*runs("ok", name="a"), *runs("ok", "ok", name="b"), *runs("err", name="a")])

    assert samples(sink, "chasquimq_jobs_completed_total") == {("a",): 1, ("b",): 2}
    assert value(sink, "chasquimq_handler_duration_seconds_count", name="a") == 2


def test_a_job_without_a_name_has_an_empty_label(sink):
    sink.job_outcomes(runs("ok", name=""))

    assert samples(sink, "chasquimq_jobs_completed_total") == {("",): 1}


def test_retries_and_burials_are_counted(sink):
    sink.retries_scheduled([RetryScheduled(2, 1_500, "mail"), RetryScheduled(3, 500, "mail")])
    sink.dlqs_routed([DlqRouted(DlqReason.UNRECOVERABLE, 1, "mail")])
    sink.retry_scheduled(RetryScheduled(2, 0, "mail"))
    sink.dlq_routed(DlqRouted(DlqReason.MALFORMED, 0))

    assert value(sink, "chasquimq_retries_scheduled_total", name="mail") == 3
    assert value(sink, "chasquimq_retry_backoff_seconds_sum", name="mail") == 2.0
    assert value(sink, "chasquimq_dlq_routed_total", reason="unrecoverable", name="mail") == 1
    assert value(sink, "chasquimq_dlq_routed_total", reason="malformed", name="") == 1


def test_the_delayed_set_is_shown_in_both_units(sink):
    sink.promoter_tick(PromoterTick(promoted=3, depth=9, oldest_pending_lag_ms=1_500))
    sink.promoter_tick(PromoterTick(promoted=1, depth=8, oldest_pending_lag_ms=250))

    assert value(sink, "chasquimq_promoter_promoted_total") == 4
    assert value(sink, "chasquimq_delayed_zset_depth") == 8
    assert value(sink, "chasquimq_promoter_depth") == 8
    assert value(sink, "chasquimq_promoter_oldest_pending_lag_ms") == 250
    assert value(sink, "chasquimq_promoter_oldest_lag_seconds") == 0.25


def test_locks_of_promoter_and_scheduler_are_counted_apart(sink):
    sink.lock_outcome(LockOutcome("promoter", is_acquired=True))
    sink.lock_outcome(LockOutcome("promoter", is_acquired=False))
    sink.lock_outcome(LockOutcome("scheduler", is_acquired=True))

    assert value(sink, "chasquimq_promoter_lock_acquired_total") == 1
    assert value(sink, "chasquimq_promoter_lock_lost_total") == 1
    assert value(sink, "chasquimq_scheduler_lock_acquired_total") == 1
    assert value(sink, "chasquimq_scheduler_lock_lost_total") == 0


def test_reads_losses_and_drops_are_counted(sink):
    sink.reader_batch(ReaderBatch(size=7, reclaimed=2))
    sink.lease_lost(LeaseLost(3))
    sink.stale_outcomes(StaleOutcomes(stale=1, unproven=2))
    sink.rows_dropped(RowsDropped(events=4, history=5, events_unproven=6))
    sink.group_recreated(GroupRecreated(7))

    assert value(sink, "chasquimq_consumer_batch_size_sum") == 7
    assert value(sink, "chasquimq_consumer_reclaimed_total") == 2
    assert value(sink, "chasquimq_leases_lost_total") == 3
    assert value(sink, "chasquimq_stale_outcomes_total") == 1
    assert value(sink, "chasquimq_unproven_outcomes_total") == 2
    assert value(sink, "chasquimq_events_dropped_total") == 4
    assert value(sink, "chasquimq_events_unproven_total") == 6
    assert value(sink, "chasquimq_history_rows_dropped_total") == 5
    assert value(sink, "chasquimq_group_recreated_total") == 7


def test_the_health_of_a_worker_is_shown_as_it_is_now(sink):
    sink.worker_health(WorkerHealth(is_consuming=False, has_trusted_leases=False))
    sink.worker_health(
        WorkerHealth(
            is_consuming=True,
            has_trusted_leases=True,
            loops_down=1,
            waiting=2,
            running=3,
            unconfirmed=4,
            last_read_age_ms=500,
        )
    )

    shown = {
        name: value(sink, f"chasquimq_worker_{name}")
        for name in (
            "consuming",
            "leases_trusted",
            "loops_down",
            "jobs_waiting",
            "jobs_running",
            "outcomes_unconfirmed",
            "last_read_age_seconds",
        )
    }
    assert list(shown.values()) == [1, 1, 1, 2, 3, 4, 0.5]


def test_a_labelled_record_is_shown_once_under_its_labels(sink):
    QueueLabeled(sink, "emails").job_outcomes(runs("ok"))
    Labeled(QueueLabeled(sink, "sms"), region="eu").job_outcomes(runs("ok", "ok"))

    assert samples(sink, "chasquimq_jobs_completed_total", name="mail") == {
        ("emails",): 1,
        ("sms", "eu"): 2,
    }


def test_wrappers_with_equal_labels_fill_the_same_series(sink):
    QueueLabeled(sink, "emails").job_outcomes(runs("ok"))
    QueueLabeled(sink, "emails").job_outcomes(runs("ok"))

    assert value(sink, "chasquimq_jobs_completed_total", queue="emails") == 2


def test_a_labelled_counter_is_there_from_the_start(sink):
    QueueLabeled(sink, "emails")

    assert samples(sink, "chasquimq_leases_lost_total") == {("emails",): 0}


def test_a_sink_that_heard_nothing_shows_nothing(sink):
    assert sink.exposition() == b""


def test_names_beyond_the_limit_share_one_series():
    sink = PrometheusSink(registry=CollectorRegistry(), names_max=2)

    sink.job_outcomes([run for name in "abcda" for run in runs("ok", name=name)])
    QueueLabeled(sink, "emails").job_outcomes(runs("ok", name="e"))

    assert samples(sink, "chasquimq_jobs_completed_total") == {
        ("a",): 2,
        ("b",): 1,
        ("other",): 2,
    } | {("other", "emails"): 1}


def test_a_thousand_names_have_series_of_their_own(sink):
    sink.job_outcomes([run for at in range(1_200) for run in runs("ok", name=f"job-{at}")])

    shown = samples(sink, "chasquimq_jobs_completed_total")
    assert (len(shown), shown["other",]) == (1_001, 200)


@pytest.mark.parametrize(
    ("name", "shown"),
    [('say "hi"\\\n', 'say "hi"\\\n'), ("naïve 🦙", "naïve 🦙"), ("\udcff", "\\udcff")],
    ids=["quotes", "unicode", "surrogate"],
)
def test_any_name_makes_a_page_that_can_be_read(sink, name, shown):
    sink.job_outcomes(runs("ok", name=name))

    assert samples(sink, "chasquimq_jobs_completed_total") == {(shown,): 1}


def test_runs_are_shown_whether_or_not_their_pile_was_full(sink):
    for _ in range(100):
        sink.job_outcomes(runs(*["ok"] * 99))

    assert value(sink, "chasquimq_jobs_completed_total") == 9_900
    assert value(sink, "chasquimq_handler_duration_seconds_count") == 9_900


def test_counting_goes_on_while_a_scrape_draws(sink):
    counting = threading.Thread(
        target=lambda: [sink.job_outcomes(runs("ok", name=str(at))) for at in range(900)]
    )

    counting.start()
    while counting.is_alive():
        sink.exposition()
    counting.join()

    assert sum(samples(sink, "chasquimq_jobs_completed_total").values()) == 900


def test_a_registry_takes_one_sink():
    registry = CollectorRegistry()
    PrometheusSink(registry=registry)

    with pytest.raises(SettingsError, match="share the first one"):
        PrometheusSink(registry=registry)


def test_a_closed_sink_makes_room_for_another():
    registry = CollectorRegistry()
    PrometheusSink(registry=registry).close()

    assert PrometheusSink(registry=registry).exposition() == b""
