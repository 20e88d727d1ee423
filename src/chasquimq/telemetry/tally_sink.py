"""A sink that fills a tally; exporters build on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic

from chasquimq.telemetry import families as f
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
from chasquimq.telemetry.tally import H, Tallies

_LOCKS = {
    ("promoter", True): f.PROMOTER_LOCK_ACQUIRED,
    ("promoter", False): f.PROMOTER_LOCK_LOST,
    ("scheduler", True): f.SCHEDULER_LOCK_ACQUIRED,
    ("scheduler", False): f.SCHEDULER_LOCK_LOST,
}
# What only a leader of promotion can tell.
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
                # The new leader tells how it is now; what we saw last would only mislead.
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
