"""What workers and `chasqui metrics --port` export: every series, with the labels that it has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from chasquimq.cli.commands.metrics import scrape_page
from chasquimq.model.delivery import DlqReason
from chasquimq.model.snapshot import Snapshot
from chasquimq.queue.inspector import Survey
from chasquimq.telemetry.prometheus import PrometheusSink
from chasquimq.telemetry.sink import (
    DlqRouted,
    GroupRecreated,
    JobOutcome,
    LeaseLost,
    LockOutcome,
    MetricsSink,
    PromoterTick,
    QueueLabeled,
    ReaderBatch,
    RetryScheduled,
    RowsDropped,
    StaleOutcomes,
    WorkerHealth,
)

Series = Mapping[str, frozenset[str]]
# What a scrape adds to each series, and the one series that Prometheus makes itself.
SCRAPE_LABELS = frozenset({"job", "instance"})
OF_PROMETHEUS = {"up": SCRAPE_LABELS}
# What redis_exporter exports of a server, of which the page of metrics has a table.
_FOLLOWED = frozenset({"master_host", "master_port"})
OF_SERVER = {
    "redis_aof_enabled": frozenset(),
    "redis_aof_last_bgrewrite_status": frozenset(),
    "redis_aof_last_write_status": frozenset(),
    "redis_connected_slaves": frozenset(),
    "redis_evicted_keys_total": frozenset(),
    "redis_master_link_up": _FOLLOWED,
    "redis_memory_max_bytes": frozenset(),
    "redis_memory_used_bytes": frozenset(),
    "redis_rdb_changes_since_last_save": frozenset(),
    "redis_rdb_last_bgsave_status": frozenset(),
    "redis_rdb_last_save_timestamp_seconds": frozenset(),
    "redis_rejected_connections_total": frozenset(),
    "redis_slave_info": _FOLLOWED | {"read_only"},
    "redis_slowlog_last_id": frozenset(),
    "redis_up": frozenset(),
}


def known() -> Series:
    """All that an alert may ask for: ours, and what is exported of the server."""
    return exported() | {name: labels | SCRAPE_LABELS for name, labels in OF_SERVER.items()}


@cache
def exported() -> Series:
    """Names of series and their labels, as a Prometheus that scrapes both has them."""
    pages = (worker_page(), depths_page())
    found = {name: labels | SCRAPE_LABELS for page in pages for name, labels in series(page)}
    return found | OF_PROMETHEUS


def series(page: str) -> list[tuple[str, frozenset[str]]]:
    return [
        (sample.name, frozenset(sample.labels))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def worker_page() -> str:
    """The page of a worker to which everything has happened once."""
    registry = CollectorRegistry()
    prometheus = PrometheusSink(registry=registry)
    tell_everything(QueueLabeled(prometheus, "orders"))
    return prometheus.exposition().decode()


def tell_everything(sink: MetricsSink) -> None:
    for role in ("promoter", "scheduler"):
        sink.lock_outcome(LockOutcome(role, is_acquired=True))
        sink.lock_outcome(LockOutcome(role, is_acquired=False))
        sink.lock_outcome(LockOutcome(role, is_acquired=True))
    sink.promoter_tick(PromoterTick(1, 1, 1))
    sink.reader_batch(ReaderBatch(1, 1))
    kinds = ("ok", "err", "panic", "snoozed")
    sink.job_outcomes([JobOutcome(kind, 1, 1, "charge", 1) for kind in kinds])
    sink.retry_scheduled(RetryScheduled(2, 100, "charge"))
    sink.dlq_routed(DlqRouted(DlqReason.UNRECOVERABLE, 1, "charge"))
    sink.lease_lost(LeaseLost(1))
    sink.stale_outcomes(StaleOutcomes(1, 1))
    sink.rows_dropped(RowsDropped(1, 1, 1))
    sink.group_recreated(GroupRecreated(1))
    sink.worker_health(WorkerHealth(is_consuming=True, has_trusted_leases=True))


def depths_page() -> str:
    snapshot = Snapshot(
        queue="orders", group="default", at_ms=0, exists=True, has_group=True, stream_depth=1,
        pending=1, dlq_depth=1, delayed_depth=1, oldest_delayed_lag_ms=1, repeatable_count=1,
        added_total=1,
    )  # fmt: skip
    return scrape_page(Survey([snapshot], [], [], {}, []), snapshot.group)
