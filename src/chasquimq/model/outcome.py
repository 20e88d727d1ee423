"""What an attempt came to, on its way through the one door."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from chasquimq.model.delivery import Arrival, Delivery
from chasquimq.model.fingerprint import fingerprint
from chasquimq.model.reason import DlqReason
from chasquimq.model.verdict import Failure


class Door(IntEnum):
    """How the server answered a move: it was done, or the entry was not ours to move."""

    NOT_OWNER = -1
    GONE = 0
    DONE = 1


class Completing(msgspec.Struct, frozen=True, gc=False):
    """A delivery whose handler returned; `result` is None when there is nothing to keep."""

    delivery: Delivery
    result: bytes | None

    @property
    def entry(self) -> Delivery:
        return self.delivery

    @property
    def entry_id(self) -> bytes:
        return self.delivery.entry_id


class Retrying(msgspec.Struct, frozen=True, gc=False):
    """A delivery on its way to another run; `spent` goes into its new envelope.

    Its extras travel as they came, but for those that `changes` sets.
    """

    delivery: Delivery
    after_ms: int
    spent: int
    changes: dict[str, int | None] | None
    failure: Failure | None = None
    # It goes back to the stream instead of waiting in the delayed set.
    is_at_once: bool = False

    @property
    def entry(self) -> Delivery:
        return self.delivery

    @property
    def entry_id(self) -> bytes:
        return self.delivery.entry_id

    @property
    def was_run(self) -> bool:
        """Whether a handler was called; one that nobody has the name of was not."""
        return self.delivery.started_ns > 0

    @property
    def is_snooze(self) -> bool:
        """Whether it comes back without an attempt spent."""
        delivery = self.delivery
        return self.spent <= delivery.spent + delivery.earlier


class Burying(msgspec.Struct, frozen=True, gc=False):
    """An entry on its way to the DLQ; `attempt` 0 means that it never started.

    `traceback` is that of its last attempt; empty where nothing of it is kept.
    """

    entry: Delivery | Arrival
    reason: DlqReason
    attempt: int
    failure: Failure | None = None
    traceback: str = ""

    @property
    def entry_id(self) -> bytes:
        return self.entry.entry_id

    @property
    def was_run(self) -> bool:
        """Whether a handler was called; what was refused on arrival never saw one."""
        return isinstance(self.entry, Delivery) and self.entry.started_ns > 0

    @property
    def detail(self) -> str | None:
        """What the reason alone does not tell; None where there is nothing to add."""
        if isinstance(self.entry, Arrival):
            return self.entry.detail
        return _lost_runs(self) if self.is_crash_loop else None

    @property
    def fingerprint(self) -> str:
        """The mark of its kind; all crash loops are one kind."""
        if self.failure is not None:
            return self.failure.fingerprint
        return fingerprint(self.reason, "") if self.is_crash_loop else ""

    @property
    def is_crash_loop(self) -> bool:
        return self.reason is DlqReason.CRASH_LOOP

    @property
    def size_bytes(self) -> int:
        entry = self.entry
        return len(entry.body if isinstance(entry, Arrival) else entry.envelope)


def _lost_runs(move: Burying) -> str:
    lost = move.entry.earlier if isinstance(move.entry, Delivery) else 0
    workers = "its worker" if lost == 1 else "their workers"
    return f"{lost} of {move.attempt} runs reported no end: {workers} died or went silent"
