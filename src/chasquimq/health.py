"""Health: how a worker is doing, at one moment."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from chasquimq.telemetry.sink import WorkerHealth

if TYPE_CHECKING:
    from chasquimq.engine.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Health:
    """Totals count since the worker started; `loops_down` names loops failing for over 5 s."""

    is_running: bool = False
    is_consuming: bool = False
    has_trusted_leases: bool = True
    loops_down: dict[str, str] = field(default_factory=dict)
    waiting: int = 0
    running: int = 0
    unconfirmed: int = 0
    last_read_age_ms: int = 0
    lease_beat_age_ms: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    buried: int = 0
    handed_back: int = 0
    stale_outcomes: int = 0
    unproven_outcomes: int = 0
    leases_lost: int = 0

    @property
    def is_ok(self) -> bool:
        return self.is_consuming and self.has_trusted_leases and not self.loops_down

    @property
    def record(self) -> WorkerHealth:
        """What a sink is told of it."""
        return WorkerHealth(
            is_consuming=self.is_consuming,
            has_trusted_leases=self.has_trusted_leases,
            loops_down=len(self.loops_down),
            waiting=self.waiting,
            running=self.running,
            unconfirmed=self.unconfirmed,
            last_read_age_ms=self.last_read_age_ms,
            lease_beat_age_ms=self.lease_beat_age_ms,
        )


def health_of(pipeline: Pipeline, *, is_stopping: bool) -> Health:
    """How a worker is doing whose pipeline runs."""
    holdings = pipeline.holdings
    read_age_s = time.monotonic() - pipeline.reader.last_read_s
    return Health(
        is_running=True,
        is_consuming=not is_stopping and pipeline.is_reading and pipeline.store.is_up,
        has_trusted_leases=pipeline.lease.is_trusted,
        loops_down=pipeline.supervisor.loops_down,
        waiting=len(holdings.waiting),
        running=holdings.running_count,
        unconfirmed=holdings.unconfirmed_count,
        last_read_age_ms=int(read_age_s * 1000),
        lease_beat_age_ms=pipeline.lease.beat_age_ms,
        **asdict(pipeline.outcomes.counters),
    )
