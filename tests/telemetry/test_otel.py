"""What an export of OpenTelemetry's SDK sees."""

import doctest

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from chasquimq.errors import SettingsError
from chasquimq.model.delivery import DlqReason
from chasquimq.telemetry import otel
from chasquimq.telemetry.families import FAMILIES
from chasquimq.telemetry.otel import OtelSink, otel_name, otel_unit
from chasquimq.telemetry.sink import (
    DlqRouted,
    JobOutcome,
    PromoterTick,
    QueueLabeled,
    ReaderBatch,
    RetryScheduled,
    WorkerHealth,
)


class Export:
    """An SDK whose exports are read in place."""

    def __init__(self):
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self.reader])

    def metrics(self):
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def points(self, name):
        """The points of a metric, by the values of their attributes."""
        found = self.metrics()[name].data.data_points
        return {tuple(point.attributes.values()): point for point in found}

    def values(self, name):
        return {labels: point.value for labels, point in self.points(name).items()}


@pytest.fixture
def export():
    export = Export()
    yield export
    export.provider.shutdown()


@pytest.fixture
def sink(export):
    return OtelSink(meter_provider=export.provider)


def runs(*kinds, name="mail", duration_us=5_000, wait_us=20_000):
    return [JobOutcome(kind, 1, duration_us, name, wait_us) for kind in kinds]


def test_runs_are_counted_by_name_and_by_how_they_failed(export, sink):
    sink.job_outcomes(runs("ok", "ok", "err"))

    assert export.values("chasquimq.jobs_completed") == {("mail",): 2}
    assert export.values("chasquimq.jobs_failed") == {("error", "mail"): 1}


def test_durations_and_waits_are_recorded_in_seconds(export, sink):
    sink.job_outcomes(runs("ok", "ok", duration_us=5_000))

    point = export.points("chasquimq.handler_duration")["mail",]
    assert (point.count, point.sum, point.max) == (2, pytest.approx(0.01), 0.005)
    assert point.explicit_bounds[:2] == (0.00005, 0.0001)
    assert export.points("chasquimq.job_wait")["mail",].sum == pytest.approx(0.04)
    assert export.metrics()["chasquimq.handler_duration"].unit == "s"


def test_sums_go_on_from_export_to_export(export, sink):
    sink.job_outcomes(runs("ok"))
    export.metrics()
    sink.job_outcomes(runs("ok"))

    assert export.values("chasquimq.jobs_completed") == {("mail",): 2}


def test_labels_become_attributes(export, sink):
    QueueLabeled(sink, "emails").job_outcomes(runs("ok"))
    QueueLabeled(sink, "sms").job_outcomes(runs("ok", "ok"))

    assert export.values("chasquimq.jobs_completed") == {("emails", "mail"): 1, ("sms", "mail"): 2}
    assert export.points("chasquimq.handler_duration").keys() == {
        ("emails", "mail"),
        ("sms", "mail"),
    }


def test_everything_else_is_exported_too(export, sink):
    sink.retries_scheduled([RetryScheduled(2, 1_500, "mail")])
    sink.dlqs_routed([DlqRouted(DlqReason.EXPIRED, 0, "mail")])
    sink.promoter_tick(PromoterTick(3, 4, 2_500))
    sink.reader_batch(ReaderBatch(7, 1))
    sink.worker_health(WorkerHealth(is_consuming=True, has_trusted_leases=False))

    assert export.values("chasquimq.retries_scheduled") == {("mail",): 1}
    assert export.points("chasquimq.retry_backoff")["mail",].sum == 1.5
    assert export.values("chasquimq.dlq_routed") == {("expired", "mail"): 1}
    assert export.values("chasquimq.promoter_depth") == {(): 4}
    assert export.values("chasquimq.promoter_oldest_lag") == {(): 2.5}
    assert export.points("chasquimq.consumer_batch_size")[()].sum == 7
    assert export.values("chasquimq.worker_consuming") == {(): 1}
    assert export.values("chasquimq.worker_leases_trusted") == {(): 0}


def test_names_beyond_the_limit_share_one_series(export):
    sink = OtelSink(meter_provider=export.provider, names_max=1)

    sink.job_outcomes([*runs("ok", name="a"), *runs("ok", name="b"), *runs("ok", name="c")])

    assert export.values("chasquimq.jobs_completed") == {("a",): 1, ("other",): 2}


@pytest.mark.parametrize(("samples_max", "recorded"), [(1, 1), (10, 10), (64, 50), (100, 100)])
def test_a_bound_on_samples_thins_histograms_and_leaves_sums_exact(export, samples_max, recorded):
    sink = OtelSink(meter_provider=export.provider, samples_max=samples_max)

    sink.job_outcomes(runs(*["ok"] * 100))

    assert export.points("chasquimq.handler_duration")["mail",].count == recorded
    assert export.values("chasquimq.jobs_completed") == {("mail",): 100}


def test_a_bound_that_would_let_nothing_through_is_refused():
    with pytest.raises(SettingsError, match="samples_max"):
        OtelSink(samples_max=0)


def test_without_an_sdk_numbers_go_nowhere_and_nothing_breaks():
    OtelSink().job_outcomes(runs("ok", "err"))


def test_a_metric_with_a_twin_in_base_units_is_left_to_prometheus(export, sink):
    sink.promoter_tick(PromoterTick(3, 4, 2_500))

    twins = {otel_name(family) for family in FAMILIES if family.has_twin}
    assert len(twins) == 2
    assert not twins & export.metrics().keys()


def test_names_are_those_of_prometheus_without_unit_and_kind():
    assert doctest.testmod(otel).failed == 0
    assert len({otel_name(family) for family in FAMILIES}) == len(FAMILIES)


def test_a_unit_is_one_of_what_is_counted():
    units = {otel_unit(family) for family in FAMILIES}

    assert {"s", "1", "{job}", "{entry}"} <= units
    assert "{entrie}" not in units
