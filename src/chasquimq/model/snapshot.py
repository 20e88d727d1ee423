"""Read-only pictures of a queue at one moment, by the server's clock."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chasquimq.model.json_value import ToDict
from chasquimq.model.worker_record import WorkerRecord, WorkerState, state_after

_RUST_NAME = re.compile("c-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(ToDict):
    """How much is where.

    `stream_depth` counts what waits and what runs, `pending` what workers hold of it; `parked` is
    what workers gave back, which waits for the next one.
    `oldest_delayed_lag_ms` is how late the first delayed job is, None where none is delayed.
    `added_total` counts every entry the stream ever had, None where the server does not count.
    """

    queue: str
    group: str
    at_ms: int
    exists: bool
    has_group: bool
    stream_depth: int
    pending: int
    parked: int = 0
    dlq_depth: int
    delayed_depth: int
    oldest_delayed_lag_ms: int | None
    repeatable_count: int
    added_total: int | None

    @property
    def ready(self) -> int:
        """What no worker has taken yet."""
        return max(0, self.stream_depth - self.pending)

    @property
    def left_total(self) -> int | None:
        """How many entries ever left the stream: completed, retried or given up."""
        return None if self.added_total is None else self.added_total - self.stream_depth


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot(ToDict):
    """A consumer of the group; `idle_ms` is how long ago it last sent a command for its jobs.

    `record` is what it says of itself, and `record_age_ms` how long ago it last said so; workers
    of ChasquiMQ (Rust) say nothing. The parking consumer is nobody: it keeps what workers gave back
    until one takes it.
    """

    name: str
    pending: int
    idle_ms: int
    is_parking: bool = False
    record: WorkerRecord | None = None
    record_age_ms: int | None = None

    @property
    def is_rust(self) -> bool:
        """Whether it looks like a worker of ChasquiMQ (Rust)."""
        return self.record is None and _RUST_NAME.fullmatch(self.name) is not None

    @property
    def silent_ms(self) -> int:
        """How long nothing was heard of it: neither a command nor a renewal of its record."""
        return self.idle_ms if self.record_age_ms is None else min(self.idle_ms, self.record_age_ms)

    def lease_ms(self, assumed_ms: int) -> int:
        """Its own lease; the assumed one where it does not say."""
        return self.record.lease_ms if self.record and self.record.lease_ms else assumed_ms

    def state(self, lease_ms: int) -> WorkerState:
        """Whether it lives; `lease_ms` is assumed of a worker without a record."""
        if self.is_parking:
            return "parking"
        has_record = self.record is not None
        return state_after(self.silent_ms, self.lease_ms(lease_ms), has_record=has_record)

    def taken_over_in_ms(self, lease_ms: int) -> int:
        """When a living worker of the same lease may take over what it holds."""
        return max(0, self.lease_ms(lease_ms) - self.silent_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedJob(ToDict):
    """A member of the delayed set; `job_id` and `attempt` are None where it cannot be read.

    `due_ms` is None where the score is no instant. `waits_for` is set where no worker that met the
    job had its handler: it is put back since `waits_since_ms`, until `waits_until_ms`.
    """

    job_id: str | None
    name: str
    due_ms: int | None
    attempt: int | None
    member_bytes: int
    waits_for: str | None = None
    waits_since_ms: int | None = None
    waits_until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WrongType(ToDict):
    """A key of a queue that somebody put another kind of value into."""

    key: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"the key {self.key} must hold a {self.wanted}, found a {self.found}"
