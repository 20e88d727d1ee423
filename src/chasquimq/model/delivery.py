"""Describes what a worker reads from the stream: deliveries, and entries it must reject."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from chasquimq.model.backoff import RetryOverride


class DlqReason(StrEnum):
    """The label in a DLQ entry's `reason` field; ChasquiMQ (Rust) has the first five."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    DECODE_FAILED = "decode_failed"
    MALFORMED = "malformed"
    OVERSIZE_PAYLOAD = "oversize_payload"
    UNRECOVERABLE = "unrecoverable"
    CRASH_LOOP = "crash_loop"
    UNKNOWN_NAME = "unknown_name"
    MALFORMED_DELAYED = "malformed_delayed"
    EXPIRED = "expired"


# What stands before the entry ids of a lane, so that ids of two streams differ: an id begins
# with a digit. The queue's own stream is lane 0.
LANE_MARKS = (b"", b"h", b"x", b"l")


def entry_key(lane: int, entry_id: bytes) -> bytes:
    """Return what identifies an entry within its queue; two streams may hold the same id."""
    return LANE_MARKS[lane] + entry_id


def lane_and_id(key: bytes) -> tuple[int, bytes]:
    """Return lane and id of a key that `entry_key` made."""
    mark = key[:1]
    return (0, key) if mark.isdigit() else (LANE_MARKS.index(mark), key[1:])


# The key of an entry, and the number of deliveries that it is charged with.
Count = tuple[bytes, int]


class Delivery(msgspec.Struct, gc=False, eq=False):
    """One delivery; the fields above the line come from the server, the others change here.

    `spent` is the envelope's attempt count, `earlier` the charged deliveries before this one,
    `payload` and `envelope` are opaque to everyone but the store.
    """

    entry_id: bytes
    job_id: str
    name: str
    payload: bytes
    created_at_ms: int
    spent: int
    earlier: int
    retry: RetryOverride | None
    extras: dict[str, Any] | None
    due_ms: int | None
    envelope: bytes
    # ---
    is_charged: bool = True
    is_lease_lost: bool = False
    # Its handler ended; only the server's confirmation is missing.
    is_finished: bool = False
    held_since_ns: int = 0
    started_ns: int = 0
    duration_us: int = 0
    # It runs in a thread, which cannot be stopped: no timeout and no requeue while it runs.
    is_unstoppable: bool = False
    # Its `active` event was written.
    is_announced: bool = False
    # Its process pool ends it at the timeout, after a warning.
    has_own_timer: bool = False
    # Which stream of the queue it was read from.
    lane: int = 0

    @property
    def key(self) -> bytes:
        """What identifies it within its queue."""
        return entry_key(self.lane, self.entry_id)

    @property
    def run_number(self) -> int:
        """Which start of the job this is, counted from 1; crashes count."""
        return self.spent + self.earlier + 1

    @property
    def was_redelivered(self) -> bool:
        return self.earlier > 0

    def max_attempts(self, default: int) -> int:
        """The job's own budget, or the worker's."""
        if self.retry is None or self.retry.max_attempts is None:
            return default
        return self.retry.max_attempts

    def timeout_ms(self, default: int | None) -> int | None:
        """The job's own time limit, or the worker's."""
        own = self.extras.get("timeout_ms") if self.extras else None
        return own if isinstance(own, int) else default


def ready_times_ms(batch: Sequence[Delivery]) -> list[int]:
    """Return when each became ready, from its entry id."""
    # An id is two numbers: as one JSON array they are read in half the time of splitting each id.
    numbers = b",".join([one.entry_id for one in batch]).replace(b"-", b",")
    return _read_numbers(b"[%b]" % numbers)[::2]


_read_numbers = msgspec.json.Decoder(list[int]).decode


class TakenOver(msgspec.Struct, frozen=True, gc=False):
    """An entry whose lease another worker did not renew; `owner` is empty where it is not known."""

    entry_id: bytes
    silent_ms: int
    owner: str
    lane: int = 0

    @property
    def key(self) -> bytes:
        return entry_key(self.lane, self.entry_id)


class RejectedEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry that cannot be decoded, kept with its bytes for the DLQ."""

    entry_id: bytes
    reason: DlqReason
    detail: str
    name: str
    body: bytes
    lane: int = 0

    @property
    def key(self) -> bytes:
        return entry_key(self.lane, self.entry_id)
