"""Exports metrics to Prometheus; histograms are plain arrays, filled batch by batch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from chasquimq.errors import SettingsError
from chasquimq.telemetry.families import FAMILIES, Family
from chasquimq.telemetry.tally import NAMES_MAX, Labels, LabelTally, Series, Tallies, TallySink

# Below this many, a search per number is cheaper than a sort and a search per bound.
_SORT_FROM = 16


class Histogram:
    """Counts of numbers by upper bound, the bound itself included; the last count has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add_many(self, numbers: Sequence[int]) -> None:
        self.total += sum(numbers)
        if len(numbers) < _SORT_FROM:
            for number in numbers:
                self.counts[bisect_left(self.bounds, number)] += 1
            return
        self._add_sorted(sorted(numbers))

    def _add_sorted(self, numbers: list[int]) -> None:
        counts = self.counts
        highest = numbers[-1]
        placed = 0
        for at, bound in enumerate(self.bounds):
            if highest <= bound:
                counts[at] += len(numbers) - placed
                return
            reached = bisect_right(numbers, bound, placed)
            counts[at] += reached - placed
            placed = reached
        counts[-1] += len(numbers) - placed

    def cumulative(self) -> list[int]:
        """How many were at or below each bound; the last is how many there were."""
        return list(accumulate(self.counts))

    def copy(self) -> Histogram:
        twin = Histogram(self.bounds)
        twin.counts = self.counts.copy()
        twin.total = self.total
        return twin


try:
    from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Sample
except ModuleNotFoundError as missing:
    missing.add_note("PrometheusSink needs an extra: pip install 'chasquimq-py[prometheus]'")
    raise


class PrometheusSink(TallySink[Histogram]):
    """Exports metrics; one for a process, shared by its workers, each in a `QueueLabeled`.

    At most `names_max` job names have series of their own, later ones are shown as `other`.
    """

    def __init__(
        self, *, registry: CollectorRegistry = REGISTRY, names_max: int = NAMES_MAX
    ) -> None:
        super().__init__(Tallies(_new_histogram, names_max=names_max))
        self._registry = registry
        self._collector = _Collector(self._tallies)
        try:
            registry.register(self._collector)
        except ValueError as error:
            raise SettingsError(
                "registry", registry, "one without a PrometheusSink",
                hint="share the first one between workers, each in a QueueLabeled",
            ) from error  # fmt: skip

    def exposition(self) -> bytes:
        """Everything in the registry, in the text format that a scrape expects."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Leave the registry; later numbers are exported nowhere."""
        self._registry.unregister(self._collector)


def process_registry() -> CollectorRegistry:
    """A registry for the numbers of one process: shows what the default one does, too.

    A Worker may have a sink of its own in the default registry, which would show its numbers twice.
    """
    registry = CollectorRegistry()
    registry.register(_Others())
    return registry


class _Others(Collector):
    """What the default registry has of others."""

    def collect(self) -> Iterator[Metric]:
        own = {_metric(family).name for family in FAMILIES}
        return (metric for metric in REGISTRY.collect() if metric.name not in own)


class _Copy(NamedTuple):
    """The numbers of one label set at one moment."""

    labels: Labels
    counts: dict[Series, int]
    gauges: dict[Family, int]
    histograms: dict[Series, Histogram]


class _Collector(Collector):
    def __init__(self, tallies: Tallies[Histogram]) -> None:
        self._tallies = tallies

    def describe(self) -> Iterator[Metric]:
        return map(_metric, FAMILIES)

    def collect(self) -> Iterator[Metric]:
        page = {family: _metric(family) for family in FAMILIES}
        for copy in self._copies():
            _draw(copy, page)
        return (metric for metric in page.values() if metric.samples)

    def _copies(self) -> list[_Copy]:
        # In one go: workers wait for the lock, and drawing samples takes its time.
        with self._tallies.lock:
            return [_copy(tally) for tally in self._tallies.in_use()]


def _new_histogram(family: Family, labels: Labels) -> Histogram:
    return Histogram(family.bounds)


def _metric(family: Family) -> Metric:
    return Metric(family.name.removesuffix("_total"), family.help, family.kind)


def _copy(tally: LabelTally[Histogram]) -> _Copy:
    histograms = {series: histogram.copy() for series, histogram in tally.histograms.items()}
    return _Copy(tally.labels, tally.counts.copy(), tally.gauges.copy(), histograms)


def _draw(copy: _Copy, page: Mapping[Family, Metric]) -> None:
    # A counter that starts at 0 and not at its first number has a rate from the beginning.
    counts = {(family, ()): 0 for family in FAMILIES if _is_plain_counter(family)} | copy.counts
    for (family, values), count in counts.items():
        labels = _labels(copy, family, values)
        page[family].samples.append(Sample(family.name, labels, count))
    for family, number in copy.gauges.items():
        shown = number / family.per_unit
        page[family].samples.append(Sample(family.name, dict(copy.labels), shown))
    for (family, values), histogram in copy.histograms.items():
        page[family].samples += _buckets(family, _labels(copy, family, values), histogram)


def _buckets(family: Family, labels: dict[str, str], histogram: Histogram) -> Iterator[Sample]:
    name = f"{family.name}_bucket"
    cumulative = histogram.cumulative()
    for le, count in zip(_les(family), cumulative, strict=True):
        yield Sample(name, {**labels, "le": le}, count)
    yield Sample(f"{family.name}_count", labels, cumulative[-1])
    yield Sample(f"{family.name}_sum", labels, histogram.total / family.per_unit)


@cache
def _les(family: Family) -> list[str]:
    return [*(repr(bound / family.per_unit) for bound in family.bounds), "+Inf"]


def _labels(copy: _Copy, family: Family, values: tuple[str, ...]) -> dict[str, str]:
    return {**copy.labels, **dict(zip(family.labels, values, strict=True))}


def _is_plain_counter(family: Family) -> bool:
    return family.kind == "counter" and not family.labels
