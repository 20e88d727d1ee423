"""Depth and lag of the delayed set are shown by who leads promotion, and by nobody who led it."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from chasquimq.telemetry.otel import OtelSink
from chasquimq.telemetry.prometheus import PrometheusSink
from chasquimq.telemetry.sink import LockOutcome, PromoterTick, QueueLabeled

BEGINS = LockOutcome("promoter", is_acquired=True)
CEASES = LockOutcome("promoter", is_acquired=False)
TICK = PromoterTick(promoted=3, depth=9, oldest_pending_lag_ms=1_500)
GAUGES = {
    "chasquimq_delayed_zset_depth": 9,
    "chasquimq_promoter_depth": 9,
    "chasquimq_promoter_oldest_pending_lag_ms": 1_500,
    "chasquimq_promoter_oldest_lag_seconds": 1.5,
}


@pytest.fixture
def sink():
    return PrometheusSink(registry=CollectorRegistry())


def shown(sink: PrometheusSink, **labels: str) -> dict[str, float]:
    """The gauges of the leader that are on the page."""
    families = text_string_to_metric_families(sink.exposition().decode())
    samples = [sample for family in families for sample in family.samples]
    return {s.name: s.value for s in samples if s.name in GAUGES and s.labels == labels}


def promoted(sink: PrometheusSink) -> float:
    families = {f.name: f for f in text_string_to_metric_families(sink.exposition().decode())}
    return families["chasquimq_promoter_promoted"].samples[0].value


def tell(sink, *records: LockOutcome | PromoterTick) -> None:
    for record in records:
        hear = sink.promoter_tick if isinstance(record, PromoterTick) else sink.lock_outcome
        hear(record)


def test_a_leader_shows_them_and_a_former_leader_does_not(sink):
    tell(sink, BEGINS, TICK)
    assert shown(sink) == GAUGES

    tell(sink, CEASES)

    assert shown(sink) == {}
    assert promoted(sink) == 3


def test_one_that_leads_again_shows_them_again(sink):
    tell(sink, BEGINS, TICK, CEASES, BEGINS, TICK)

    assert shown(sink) == GAUGES


def test_a_promotion_that_ends_after_the_lock_is_counted_but_tells_no_depth(sink):
    tell(sink, BEGINS, CEASES, TICK)

    assert shown(sink) == {}
    assert promoted(sink) == 3


def test_two_workers_of_one_process_may_hand_it_to_each_other(sink):
    tell(sink, BEGINS, BEGINS, TICK, CEASES)

    assert shown(sink) == GAUGES


def test_the_scheduler_and_other_queues_do_not_matter(sink):
    orders, mails = QueueLabeled(sink, "orders"), QueueLabeled(sink, "mails")
    tell(orders, BEGINS, TICK, LockOutcome("scheduler", is_acquired=False))
    tell(mails, BEGINS, TICK, CEASES)

    assert shown(sink, queue="orders") == GAUGES
    assert shown(sink, queue="mails") == {}


def test_an_export_observes_a_leader_and_no_former_one():
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    sink = OtelSink(meter_provider=provider)

    tell(sink, BEGINS, TICK)
    leading = otel_names(reader)
    tell(sink, CEASES)
    following = otel_names(reader)
    provider.shutdown()

    assert leading - following == {"chasquimq.promoter_depth", "chasquimq.promoter_oldest_lag"}


def otel_names(reader: InMemoryMetricReader) -> set[str]:
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name for metric in scope.metrics if metric.data.data_points}
