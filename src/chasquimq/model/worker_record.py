"""What a worker says of itself, and what can be told from its silence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from chasquimq.model.json_value import ToDict

WorkerState = Literal["alive", "silent", "dead", "parking"]
# A worker says nothing more often than this, however short its lease is.
RECORD_PAUSE_MS_MIN = 1_000
# The record of a dead worker stays for a while: it tells whose the jobs were, and on which host.
_KEPT_AFTER_DEATH_MS = 60_000
_HANDLERS_MAX = 200
_HANDLERS_BYTES_MAX = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord(ToDict):
    """One worker of one group; every field has a default, so that older and newer ones are read.

    `handlers` are the names that it has handlers for, the first of them where there are many:
    `handlers_left_out` says how many more there are. `handles_all` is one function for every name.
    `supports` names what it does beside its jobs: `delayed`, `repeatable`, `results`, `history`,
    `events`. `started_at_ms` is by the server's clock. `ttl_ms` is how long the server keeps the
    record after each renewal, so that the time left tells how old the last one is.
    """

    version: str = ""
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    group: str = ""
    concurrency: int = 0
    lease_ms: int = 0
    ttl_ms: int = 0
    started_at_ms: int = 0
    handlers: tuple[str, ...] = ()
    handlers_left_out: int = 0
    handles_all: bool = False
    supports: tuple[str, ...] = ()

    def lacks(self, name: str) -> bool:
        """Whether it is known to have no handler of that name; one that names none does not say."""
        is_known = bool(self.handlers) and not (self.handles_all or self.handlers_left_out)
        return is_known and name not in self.handlers


def record_ttl_ms(lease_ms: int) -> int:
    """How long a record outlives its last renewal: a lease, and then a minute of being dead."""
    return lease_ms + _KEPT_AFTER_DEATH_MS


def bounded_handlers(names: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """The first names that a record has room for, and how many are left out."""
    every, bytes_left, kept = list(names), _HANDLERS_BYTES_MAX, list[str]()
    for name in every[:_HANDLERS_MAX]:
        bytes_left -= len(name.encode(errors="replace"))
        if bytes_left < 0:
            break
        kept.append(name)
    return tuple(kept), len(every) - len(kept)


def state_after(silent_ms: int, lease_ms: int, *, has_record: bool) -> WorkerState:
    """Whether a worker lives that was not heard of for so long; a whole lease is death.

    One with a record is heard of every third of its lease, so half a lease is a silence.
    """
    # What is renewed once a second may be a second old.
    patience_ms = 2 * RECORD_PAUSE_MS_MIN if has_record else 0
    if silent_ms > max(lease_ms, patience_ms):
        return "dead"
    return "silent" if has_record and silent_ms > max(lease_ms // 2, patience_ms) else "alive"


def leases_of(records: Sequence[WorkerRecord]) -> list[int]:
    """The different leases, the shortest first."""
    return sorted({one.lease_ms for one in records})
