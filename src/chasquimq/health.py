"""Health: how a worker is doing, at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from chasquimq.telemetry.sink import WorkerHealth


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
