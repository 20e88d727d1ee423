"""Exports metrics to OpenTelemetry: sums on request of the exporter, histograms batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        Histogram,
        Meter,
        MeterProvider,
        Observation,
        get_meter_provider,
    )
except ModuleNotFoundError as missing:
    missing.add_note("OtelSink needs an extra: pip install 'chasquimq-py[otel]'")
    raise

from chasquimq.errors import SettingsError
from chasquimq.telemetry.families import FAMILIES, Family
from chasquimq.telemetry.tally import NAMES_MAX, Labels, Tallies, TallySink

METER_NAME = "chasquimq"
_UNITS = {"": "1", "seconds": "s", "ms": "ms", "entries": "{entry}"}
_SUFFIXES = ("_total", "_seconds")
# The API has no call for many numbers at once, so there is nothing to gain from keeping them.
_UNFOLDED_MAX = 1


class OtelSink(TallySink["Recorder"]):
    """Exports metrics; one for a process, shared by its workers, each in a `QueueLabeled`.

    The SDK takes some microseconds for each number of a histogram. `samples_max` bounds how many
    of a batch are given to it, evenly picked, for queues whose jobs cost less than that; sums
    stay exact.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        names_max: int = NAMES_MAX,
        samples_max: int | None = None,
    ) -> None:
        if samples_max is not None and samples_max < 1:
            raise SettingsError("samples_max", samples_max, "None or at least 1")
        meter = (meter_provider or get_meter_provider()).get_meter(METER_NAME)
        histograms = {family: _histogram(meter, family) for family in _shown("histogram")}
        super().__init__(
            Tallies(
                lambda family, labels: Recorder(histograms[family], family, labels, samples_max),
                names_max=names_max,
                unfolded_max=_UNFOLDED_MAX,
            )
        )
        self._observe(meter)

    def _observe(self, meter: Meter) -> None:
        for family in _shown("counter"):
            meter.create_observable_counter(
                otel_name(family), [self._observing_counts(family)], otel_unit(family), family.help
            )
        for family in _shown("gauge"):
            meter.create_observable_gauge(
                otel_name(family), [self._observing_gauge(family)], otel_unit(family), family.help
            )

    def _observing_counts(self, family: Family) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(options: CallbackOptions) -> list[Observation]:
            with self._lock:
                return [
                    Observation(count, {**tally.labels, **_pair(family, values)})
                    for tally in self._tallies.in_use()
                    for (counted, values), count in tally.counts.items()
                    if counted is family
                ]

        return observe

    def _observing_gauge(self, family: Family) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(options: CallbackOptions) -> list[Observation]:
            with self._lock:
                return [
                    Observation(tally.gauges[family] / family.per_unit, dict(tally.labels))
                    for tally in self._tallies.in_use()
                    if family in tally.gauges
                ]

        return observe


class Recorder:
    """Gives the numbers of one series to the SDK, all of them or some."""

    def __init__(
        self, histogram: Histogram, family: Family, labels: Labels, samples_max: int | None
    ) -> None:
        self._record = histogram.record
        self._per_unit = family.per_unit
        self._attributes = dict(labels)
        self._samples_max = samples_max

    def add_many(self, numbers: Sequence[int]) -> None:
        for number in self._picked(numbers):
            self._record(number / self._per_unit, self._attributes)

    def _picked(self, numbers: Sequence[int]) -> Sequence[int]:
        if self._samples_max is None:
            return numbers
        return numbers[:: -(-len(numbers) // self._samples_max)]


def otel_name(family: Family) -> str:
    """The name without what OpenTelemetry says by unit and kind.

    >>> from chasquimq.telemetry.families import DURATION
    >>> otel_name(DURATION)
    'chasquimq.handler_duration'
    """
    name = family.name.replace("_", ".", 1)
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def otel_unit(family: Family) -> str:
    return _UNITS.get(family.unit) or f"{{{family.unit.removesuffix('s')}}}"


def _shown(kind: str) -> Iterator[Family]:
    return (family for family in FAMILIES if family.kind == kind and not family.has_twin)


def _histogram(meter: Meter, family: Family) -> Histogram:
    return meter.create_histogram(
        otel_name(family),
        otel_unit(family),
        family.help,
        explicit_bucket_boundaries_advisory=[bound / family.per_unit for bound in family.bounds],
    )


def _pair(family: Family, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(family.labels, values, strict=True))
