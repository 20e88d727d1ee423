"""Adds records up, per label set and batch by batch, for exporters that pull numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Generic, Protocol, TypeVar

from chasquimq.telemetry import families as f
from chasquimq.telemetry.families import Family
from chasquimq.telemetry.records import CompletedRuns, RunColumns
from chasquimq.telemetry.sink import (
    DlqRouted,
    GroupRecreated,
    JobOutcome,
    LeaseLost,
    LockOutcome,
    MetricsSink,
    PromoterTick,
    ReaderBatch,
    RetryScheduled,
    RowsDropped,
    StaleOutcomes,
    WorkerHealth,
)

NAMES_MAX = 1_000
OTHER_NAME = "other"
# A millisecond's work, and less than a megabyte.
UNFOLDED_MAX = 4_096
# A metric and the values of its labels, in their order.
Series = tuple[Family, tuple[str, ...]]
Labels = Mapping[str, str]


class Numbers(Protocol):
    """Where the numbers of a histogram go."""

    def add_many(self, numbers: Sequence[int]) -> None: ...


H = TypeVar("H", bound=Numbers)
NewHistogram = Callable[[Family, Labels], H]


class JobNames:
    """The job names that have a series of their own; later ones share one."""

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self._labels: dict[str, str] = {}

    def label(self, name: str) -> str:
        known = self._labels.get(name)
        if known is not None:
            return known
        if len(self._labels) >= self._names_max:
            return OTHER_NAME
        # A lone surrogate has no UTF-8 form and would spoil the whole page.
        return self._labels.setdefault(name, name.encode(errors="backslashreplace").decode())


class LabelTally(Generic[H]):
    """The numbers of one label set.

    Runs are kept until there are `unfolded_max` and then added up together: the same work for
    one job costs a tenth when it is done for a thousand, whatever the size of their batches.
    """

    def __init__(
        self,
        labels: Labels,
        names: JobNames,
        new_histogram: NewHistogram[H],
        *,
        unfolded_max: int = UNFOLDED_MAX,
    ) -> None:
        self.labels = labels
        self._unfolded_max = unfolded_max
        self._unfolded: list[JobOutcome] = []
        self._completed = RunColumns()
        self._names = names
        self._new_histogram = new_histogram
        self.counts: defaultdict[Series, int] = defaultdict(int)
        self.gauges: dict[Family, int] = {}
        self.histograms: dict[Series, H] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.counts or self.gauges or self.histograms)

    @property
    def is_led_elsewhere(self) -> bool:
        """Whether promotion was led here and is not any more.

        Counted, since two workers with the same labels may hand it to each other.
        """
        lost = self.counts.get((f.PROMOTER_LOCK_LOST, ()), 0)
        return lost > 0 and lost >= self.counts.get((f.PROMOTER_LOCK_ACQUIRED, ()), 0)

    def count(self, family: Family, number: int, *values: str) -> None:
        self.counts[family, values] += number

    def observe(self, family: Family, numbers: Sequence[int], *values: str) -> None:
        histogram = self.histograms.get((family, values))
        if histogram is None:
            labels = {**self.labels, **dict(zip(family.labels, values, strict=True))}
            histogram = self.histograms[family, values] = self._new_histogram(family, labels)
        histogram.add_many(numbers)

    def add_runs(self, batch: Sequence[JobOutcome]) -> None:
        if isinstance(batch, CompletedRuns):
            self._completed.add(batch)
        else:
            self._unfolded += batch
        if len(self._unfolded) + len(self._completed) >= self._unfolded_max:
            self.fold()

    def fold(self) -> None:
        """Add up the runs that were only kept so far."""
        completed, self._completed = self._completed, RunColumns()
        for name, durations_us, waits_us in completed.by_name():
            self._add_completed_of(self._names.label(name), durations_us, waits_us)
        runs, self._unfolded = self._unfolded, []
        for name, runs_of_name in _by_name(runs).items():
            self._add_runs_of(self._names.label(name), runs_of_name)

    def _add_completed_of(self, name: str, durations_us: list[int], waits_us: list[int]) -> None:
        self.observe(f.DURATION, durations_us, name)
        self.observe(f.WAIT, waits_us, name)
        self.count(f.COMPLETED, len(durations_us), name)

    def _add_runs_of(self, name: str, runs: Sequence[JobOutcome]) -> None:
        self.observe(f.DURATION, [run.handler_duration_us for run in runs], name)
        waits_us = [run.wait_us for run in runs if run.wait_us is not None]
        if waits_us:
            self.observe(f.WAIT, waits_us, name)
        kinds = [run.kind for run in runs]
        completed = kinds.count("ok")
        if completed:
            self.count(f.COMPLETED, completed, name)
        if completed == len(kinds):
            return
        for kind, label in (("err", "error"), ("panic", "panic")):
            if kind in kinds:
                self.count(f.FAILED, kinds.count(kind), label, name)
        if "snoozed" in kinds:
            self.count(f.SNOOZED, kinds.count("snoozed"), name)

    def add_retries(self, batch: Sequence[RetryScheduled]) -> None:
        for retry in batch:
            name = self._names.label(retry.name)
            self.count(f.RETRIES, 1, name)
            self.observe(f.BACKOFF, (retry.backoff_ms,), name)

    def add_burials(self, batch: Sequence[DlqRouted]) -> None:
        for burial in batch:
            self.count(f.DLQ, 1, str(burial.reason), self._names.label(burial.name))


def _by_name(batch: Sequence[JobOutcome]) -> dict[str, list[JobOutcome]]:
    groups: defaultdict[str, list[JobOutcome]] = defaultdict(list)
    for run in batch:
        groups[run.name].append(run)
    return groups


class Tallies(Generic[H]):
    """The tallies of all label sets, behind one lock: exporters may ask from another thread."""

    def __init__(
        self,
        new_histogram: NewHistogram[H],
        *,
        names_max: int = NAMES_MAX,
        unfolded_max: int = UNFOLDED_MAX,
    ) -> None:
        self._new_histogram = new_histogram
        self._names = JobNames(names_max)
        self._unfolded_max = unfolded_max
        self._by_labels: dict[frozenset[tuple[str, str]], LabelTally[H]] = {}
        self.lock = Lock()

    def of(self, labels: Labels) -> LabelTally[H]:
        """The tally of these labels; asked twice, it is the same."""
        key = frozenset(labels.items())
        with self.lock:
            if key not in self._by_labels:
                self._by_labels[key] = self._new_tally(dict(labels))
            return self._by_labels[key]

    def _new_tally(self, labels: Labels) -> LabelTally[H]:
        return LabelTally(labels, self._names, self._new_histogram, unfolded_max=self._unfolded_max)

    def in_use(self) -> list[LabelTally[H]]:
        """Tallies with something to show: labelled ones from the start, the other once filled."""
        for tally in self._by_labels.values():
            tally.fold()
        return [tally for tally in self._by_labels.values() if tally.labels or not tally.is_empty]


_LOCKS = {
    ("promoter", True): f.PROMOTER_LOCK_ACQUIRED,
    ("promoter", False): f.PROMOTER_LOCK_LOST,
    ("scheduler", True): f.SCHEDULER_LOCK_ACQUIRED,
    ("scheduler", False): f.SCHEDULER_LOCK_LOST,
}
# Only the promoter knows these.
_OF_LEADER = (f.ZSET_DEPTH, f.DEPTH, f.OLDEST_LAG_MS, f.OLDEST_LAG)


class TallySink(MetricsSink, Generic[H]):
    """Adds records to the tally of its labels."""

    def __init__(self, tallies: Tallies[H], labels: Mapping[str, str] | None = None) -> None:
        self._tallies = tallies
        self._tally = tallies.of(labels or {})
        self._lock = tallies.lock

    def labelled(self, labels: Mapping[str, str]) -> TallySink[H]:
        """A sink for these labels; what it counts is shown by this one's exporter."""
        return TallySink(self._tallies, labels)

    def promoter_tick(self, tick: PromoterTick) -> None:
        with self._lock:
            self._tally.count(f.PROMOTED, tick.promoted)
            if not self._tally.is_led_elsewhere:
                depth, lag_ms = tick.depth, tick.oldest_pending_lag_ms
                values = (depth, depth, lag_ms, lag_ms)
                self._tally.gauges.update(zip(_OF_LEADER, values, strict=True))

    def lock_outcome(self, outcome: LockOutcome) -> None:
        with self._lock:
            self._tally.count(_LOCKS[outcome.role, outcome.is_acquired], 1)
            if self._tally.is_led_elsewhere:
                # The new promoter reports them now; our last numbers would mislead.
                for family in _OF_LEADER:
                    self._tally.gauges.pop(family, None)

    def reader_batch(self, batch: ReaderBatch) -> None:
        with self._lock:
            self._tally.observe(f.BATCH_SIZE, (batch.size,))
            self._tally.count(f.RECLAIMED, batch.reclaimed)

    def job_outcome(self, outcome: JobOutcome) -> None:
        self.job_outcomes((outcome,))

    def job_outcomes(self, batch: Sequence[JobOutcome]) -> None:
        with self._lock:
            self._tally.add_runs(batch)

    def retry_scheduled(self, retry: RetryScheduled) -> None:
        self.retries_scheduled((retry,))

    def retries_scheduled(self, batch: Sequence[RetryScheduled]) -> None:
        with self._lock:
            self._tally.add_retries(batch)

    def dlq_routed(self, burial: DlqRouted) -> None:
        self.dlqs_routed((burial,))

    def dlqs_routed(self, batch: Sequence[DlqRouted]) -> None:
        with self._lock:
            self._tally.add_burials(batch)

    def lease_lost(self, loss: LeaseLost) -> None:
        with self._lock:
            self._tally.count(f.LEASES_LOST, loss.count)

    def stale_outcomes(self, outcomes: StaleOutcomes) -> None:
        with self._lock:
            self._tally.count(f.STALE, outcomes.stale)
            self._tally.count(f.UNPROVEN, outcomes.unproven)

    def rows_dropped(self, rows: RowsDropped) -> None:
        with self._lock:
            self._tally.count(f.EVENTS_DROPPED, rows.events)
            self._tally.count(f.EVENTS_UNPROVEN, rows.events_unproven)
            self._tally.count(f.HISTORY_DROPPED, rows.history)

    def group_recreated(self, group: GroupRecreated) -> None:
        with self._lock:
            self._tally.count(f.GROUP_RECREATED, group.count)

    def worker_health(self, health: WorkerHealth) -> None:
        gauges = {
            f.CONSUMING: int(health.is_consuming),
            f.LEASES_TRUSTED: int(health.has_trusted_leases),
            f.LOOPS_DOWN: health.loops_down,
            f.WAITING: health.waiting,
            f.RUNNING: health.running,
            f.UNCONFIRMED: health.unconfirmed,
            f.LAST_READ_AGE: health.last_read_age_ms,
            f.LEASE_BEAT_AGE: health.lease_beat_age_ms,
            f.STALLED: int(health.is_stalled),
            f.OLDEST_WAITING_AGE: health.oldest_waiting_age_ms,
        }
        with self._lock:
            self._tally.gauges.update(gauges)
