"""Tells how a worker is doing at one moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from chasquimq.model.json_value import ToDict
from chasquimq.telemetry.sink import WorkerHealth

if TYPE_CHECKING:
    from chasquimq.engine.pipeline import ConsumerPipeline
    from chasquimq.model.delivery import Delivery


@dataclass(frozen=True, slots=True)
class Health(ToDict):
    """Totals count since the worker started; `loops_down` names loops failing for over 5 s.

    `is_stalled`: jobs wait here, room to run them is free, and for `stall_after_ms` none started.
    """

    is_running: bool = False
    is_consuming: bool = False
    has_trusted_leases: bool = True
    is_stalled: bool = False
    loops_down: dict[str, str] = field(default_factory=dict)
    waiting: int = 0
    running: int = 0
    unconfirmed: int = 0
    last_read_age_ms: int = 0
    lease_beat_age_ms: int = 0
    oldest_waiting_age_ms: int = 0
    stalled_ms: int = 0
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
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """A sentence for each thing that is wrong; empty while all is well."""
        found: list[str] = []
        if not self.is_consuming:
            found.append("the worker does not read jobs")
        if not self.has_trusted_leases:
            found.append("leases could not be renewed in time, so nothing new is started")
        if self.is_stalled:
            found.append(
                f"{self.waiting} jobs wait and room is free, "
                f"but nothing has started for {self.stalled_ms / 1000:.1f} s"
            )
        return found + [
            f"loop {name} keeps failing: {why}" for name, why in self.loops_down.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """All of it, with the verdict and the problems in front."""
        return {"is_ok": self.is_ok, "problems": self.problems, **ToDict.to_dict(self)}

    @property
    def record(self) -> WorkerHealth:
        """The record of it for metrics sinks."""
        return WorkerHealth(
            is_consuming=self.is_consuming,
            has_trusted_leases=self.has_trusted_leases,
            loops_down=len(self.loops_down),
            waiting=self.waiting,
            running=self.running,
            unconfirmed=self.unconfirmed,
            last_read_age_ms=self.last_read_age_ms,
            lease_beat_age_ms=self.lease_beat_age_ms,
            oldest_waiting_age_ms=self.oldest_waiting_age_ms,
            is_stalled=self.is_stalled,
        )


def health_of(pipeline: ConsumerPipeline, *, is_stopping: bool) -> Health:
    """How a worker is doing whose pipeline runs."""
    in_flight = pipeline.in_flight
    read_age_s = time.monotonic() - pipeline.reader.last_read_s
    return Health(
        is_running=True,
        is_consuming=not is_stopping and pipeline.is_reading and pipeline.store.is_up,
        has_trusted_leases=pipeline.lease.is_trusted,
        is_stalled=not is_stopping and pipeline.runners.is_stalled,
        loops_down=pipeline.supervisor.loops_down,
        waiting=in_flight.waiting_count,
        running=in_flight.running_count,
        unconfirmed=in_flight.unconfirmed_count,
        last_read_age_ms=int(read_age_s * 1000),
        lease_beat_age_ms=pipeline.lease.beat_age_ms,
        oldest_waiting_age_ms=_oldest_age_ms(in_flight.waiting),
        stalled_ms=pipeline.runners.stalled_ms,
        **asdict(pipeline.settlement.counters),
    )


def _oldest_age_ms(waiting: Sequence[Delivery]) -> int:
    try:
        oldest = waiting[0]
    except IndexError:
        return 0
    return (time.monotonic_ns() - oldest.held_since_ns) // 1_000_000
