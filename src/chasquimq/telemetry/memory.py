"""Keeps records and totals in memory, for tests and for a first look."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from threading import Lock
from typing import NamedTuple, TypeVar

from chasquimq.telemetry.sink import (
    DlqRouted,
    GroupRecreated,
    JobOutcome,
    LeaseLost,
    LockOutcome,
    LockRole,
    MetricsSink,
    PromoterTick,
    ReaderBatch,
    Record,
    RetryScheduled,
    RowsDropped,
    StaleOutcomes,
    WorkerHealth,
)

RECORDS_MAX = 10_000
R = TypeVar("R", bound=Record)
Labels = frozenset[tuple[str, str]]


class InMemorySink(MetricsSink):
    """Keeps the last records and counts them all; may be read from any thread.

    Every question takes labels too, as in `sink.jobs_completed(queue="emails")`, and then answers
    for records that have them.
    """

    def __init__(self, *, records_max: int = RECORDS_MAX) -> None:
        self._memory = Memory(records_max)
        self._labels: Labels = frozenset()

    def labelled(self, labels: Mapping[str, str]) -> InMemorySink:
        """A sink that remembers in the same place, under these labels."""
        child = InMemorySink(records_max=0)
        child._memory = self._memory
        child._labels = frozenset(labels.items())
        return child

    # ── questions ─────────────────────────────────────────────────────────────────────────────────

    def records(self, kind: type[R], **labels: str) -> list[R]:
        """The last records of this kind, oldest first."""
        wanted = frozenset(labels.items())
        with self._memory.lock:
            kept = list(self._memory.records)
        return [record for own, record in kept if isinstance(record, kind) and wanted <= own]

    def jobs_completed(self, name: str | None = None, **labels: str) -> int:
        return self._total("ok", name=name, labels=labels)

    def jobs_failed(self, name: str | None = None, **labels: str) -> int:
        """Runs that raised or died."""
        return sum(self._total(kind, name=name, labels=labels) for kind in ("err", "panic"))

    def jobs_snoozed(self, name: str | None = None, **labels: str) -> int:
        """Runs whose handler raised RetryLater."""
        return self._total("snoozed", name=name, labels=labels)

    def handler_invocations(self, name: str | None = None, **labels: str) -> int:
        """Runs, however they ended."""
        ends = (self.jobs_completed, self.jobs_failed, self.jobs_snoozed)
        return sum(count(name, **labels) for count in ends)

    def dlq_count(self, reason: str | None = None, name: str | None = None, **labels: str) -> int:
        return self._total("dlq", detail=reason, name=name, labels=labels)

    def total_retries(self, name: str | None = None, **labels: str) -> int:
        return self._total("retry", name=name, labels=labels)

    def promoted_total(self, **labels: str) -> int:
        return self._total("promoted", labels=labels)

    def entries_read(self, **labels: str) -> int:
        return self._total("read", labels=labels)

    def entries_reclaimed(self, **labels: str) -> int:
        return self._total("reclaimed", labels=labels)

    def locks_acquired(self, role: LockRole | None = None, **labels: str) -> int:
        return self._total("lock_acquired", detail=role, labels=labels)

    def locks_lost(self, role: LockRole | None = None, **labels: str) -> int:
        return self._total("lock_lost", detail=role, labels=labels)

    def leases_lost(self, **labels: str) -> int:
        return self._total("lease_lost", labels=labels)

    def outcomes_stale(self, **labels: str) -> int:
        return self._total("stale", labels=labels)

    def outcomes_unproven(self, **labels: str) -> int:
        return self._total("unproven", labels=labels)

    def events_dropped(self, **labels: str) -> int:
        return self._total("events_dropped", labels=labels)

    def events_unproven(self, **labels: str) -> int:
        """Events that may be missing, because the server's answer was lost."""
        return self._total("events_unproven", labels=labels)

    def history_rows_dropped(self, **labels: str) -> int:
        return self._total("history_dropped", labels=labels)

    def groups_recreated(self, **labels: str) -> int:
        """How often a worker found its consumer group deleted and created it again."""
        return self._total("group_recreated", labels=labels)

    # ── records of the engine ─────────────────────────────────────────────────────────────────────

    def promoter_tick(self, tick: PromoterTick) -> None:
        self._record(tick, {"promoted": tick.promoted})

    def lock_outcome(self, outcome: LockOutcome) -> None:
        change = "lock_acquired" if outcome.is_acquired else "lock_lost"
        self._record(outcome, {change: 1}, detail=outcome.role)

    def reader_batch(self, batch: ReaderBatch) -> None:
        self._record(batch, {"read": batch.size, "reclaimed": batch.reclaimed})

    def job_outcome(self, outcome: JobOutcome) -> None:
        self._record(outcome, {outcome.kind: 1}, name=outcome.name)

    def retry_scheduled(self, retry: RetryScheduled) -> None:
        self._record(retry, {"retry": 1}, name=retry.name)

    def dlq_routed(self, burial: DlqRouted) -> None:
        self._record(burial, {"dlq": 1}, detail=burial.reason, name=burial.name)

    def lease_lost(self, loss: LeaseLost) -> None:
        self._record(loss, {"lease_lost": loss.count})

    def stale_outcomes(self, outcomes: StaleOutcomes) -> None:
        self._record(outcomes, {"stale": outcomes.stale, "unproven": outcomes.unproven})

    def rows_dropped(self, rows: RowsDropped) -> None:
        counts = {
            "events_dropped": rows.events,
            "events_unproven": rows.events_unproven,
            "history_dropped": rows.history,
        }
        self._record(rows, counts)

    def group_recreated(self, group: GroupRecreated) -> None:
        self._record(group, {"group_recreated": group.count})

    def worker_health(self, health: WorkerHealth) -> None:
        self._record(health, {})

    def _record(
        self, record: Record, counts: dict[str, int], *, detail: str = "", name: str = ""
    ) -> None:
        with self._memory.lock:
            self._memory.records.append((self._labels, record))
            for of, count in counts.items():
                self._memory.totals[Total(of, detail, name, self._labels)] += count

    def _total(
        self, of: str, *, labels: dict[str, str], detail: str | None = None, name: str | None = None
    ) -> int:
        wanted = frozenset(labels.items())
        with self._memory.lock:
            totals = list(self._memory.totals.items())
        return sum(
            count
            for total, count in totals
            if total.of == of
            and detail in (None, total.detail)
            and name in (None, total.name)
            and wanted <= total.labels
        )


class Total(NamedTuple):
    """What a total counts: a kind of record, by a detail of it, job name and labels."""

    of: str
    detail: str = ""
    name: str = ""
    labels: Labels = frozenset()


class Memory:
    """What label sets of one sink share: the last records, and totals since the beginning."""

    def __init__(self, records_max: int) -> None:
        self.lock = Lock()
        self.records: deque[tuple[Labels, Record]] = deque(maxlen=records_max)
        self.totals: Counter[Total] = Counter()
