"""Read-only pictures of a queue at one moment, by the server's clock."""

from __future__ import annotations

from typing import Literal

import msgspec

WorkerState = Literal["alive", "dead", "parking"]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """How much is where.

    `stream_depth` counts what waits and what runs, `pending` what workers hold of it.
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


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of the group; `idle_ms` is how long the server has not heard of it.

    The parking consumer is nobody: it keeps what workers gave back until one takes it.
    """

    name: str
    pending: int
    idle_ms: int
    is_parking: bool = False

    def state(self, lease_ms: int) -> WorkerState:
        """Whether it lives; a silence longer than the lease is death."""
        if self.is_parking:
            return "parking"
        return "dead" if self.idle_ms > lease_ms else "alive"


class DelayedJob(msgspec.Struct, frozen=True, kw_only=True):
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


class WrongType(msgspec.Struct, frozen=True):
    """A key of a queue that somebody put another kind of value into."""

    key: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"the key {self.key} must hold a {self.wanted}, found a {self.found}"
