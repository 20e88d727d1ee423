"""One finished attempt, as the history keeps it."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class AttemptOutcome(IntEnum):
    """What an attempt came to; the numbers are on the wire and stay what they are.

    `rejected` never reached a handler. `snoozed` comes back with no attempt spent. `stale` came
    after another outcome of its job. `unproven` may or may not have counted: the link broke.
    """

    COMPLETED = 0
    RETRIED = 1
    DEAD = 2
    REJECTED = 3
    SNOOZED = 4
    STALE = 5
    UNPROVEN = 6

    @property
    def label(self) -> str:
        return self.name.lower()


def outcome_label(number: int) -> str:
    """The word for an outcome; one of a later version is shown by its number."""
    try:
        return AttemptOutcome(number).label
    except ValueError:
        return f"outcome-{number}"


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """None stands for what its writer did not know; an attempt that never started has no start.

    `enqueued_at_ms` is of the producer's clock, the other times are of the server's. `attempt`
    counts from 1, and is 0 where no handler saw the job. `deliveries` counts this one too.
    """

    job_id: str
    name: str
    attempt: int
    outcome: int
    enqueued_at_ms: int | None
    ready_at_ms: int | None
    due_ms: int | None
    started_at_us: int | None
    duration_us: int
    deliveries: int
    backoff_ms: int
    error_type: str | None = None
    error: str | None = None
    fingerprint: str | None = None
