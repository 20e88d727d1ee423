"""Defines what is read from the server about a queue: counts, workers, groups, and single jobs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from chasquimq.errors import GroupConflict, StoreError
from chasquimq.model.json_value import JsonForm, ToDict

# ── workers ───────────────────────────────────────────────────────────────────────────────────────

WorkerState = Literal["alive", "silent", "dead", "parking"]
# A worker renews its record at most this often, however short its lease is.
RECORD_PAUSE_MS_MIN = 1_000
# The record of a dead worker stays for a while: it names the worker and its host.
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
    record after each renewal, so the time left gives the age of the last one.
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
        """Whether it is known to have no handler of that name."""
        is_known = bool(self.handlers) and not (self.handles_all or self.handlers_left_out)
        return is_known and name not in self.handlers


def record_ttl_ms(lease_ms: int) -> int:
    """Return how long a record outlives its last renewal: a lease, then a minute."""
    return lease_ms + _KEPT_AFTER_DEATH_MS


def bounded_handlers(names: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """Return the names that a record has room for, and how many are left out."""
    every, bytes_left, kept = list(names), _HANDLERS_BYTES_MAX, list[str]()
    for name in every[:_HANDLERS_MAX]:
        bytes_left -= len(name.encode(errors="replace"))
        if bytes_left < 0:
            break
        kept.append(name)
    return tuple(kept), len(every) - len(kept)


def state_after(silent_ms: int, lease_ms: int, *, has_record: bool) -> WorkerState:
    """Return the state of a worker that sent nothing for so long; after a whole lease it is dead.

    One with a record renews it every third of its lease, so after half a lease it is silent.
    """
    # What is renewed once a second may be a second old.
    patience_ms = 2 * RECORD_PAUSE_MS_MIN if has_record else 0
    if silent_ms > max(lease_ms, patience_ms):
        return "dead"
    return "silent" if has_record and silent_ms > max(lease_ms // 2, patience_ms) else "alive"


def leases_of(records: Sequence[WorkerRecord]) -> list[int]:
    """Return the different leases, the shortest first."""
    return sorted({one.lease_ms for one in records})


_RUST_NAME = re.compile("c-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(ToDict):
    """The counts of one queue at one moment.

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

    `record` is what it reports about itself, renewed `record_age_ms` ago; workers of ChasquiMQ
    (Rust) write none. The parking consumer is no worker: it keeps the jobs that workers gave back
    until one takes them.
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
        """How long it sent nothing: neither a command nor a renewal of its record."""
        return self.idle_ms if self.record_age_ms is None else min(self.idle_ms, self.record_age_ms)

    def lease_ms(self, assumed_ms: int) -> int:
        """Its own lease; the assumed one for a worker without a record."""
        return self.record.lease_ms if self.record and self.record.lease_ms else assumed_ms

    def state(self, lease_ms: int) -> WorkerState:
        """Return its state; `lease_ms` is assumed for a worker without a record."""
        if self.is_parking:
            return "parking"
        has_record = self.record is not None
        return state_after(self.silent_ms, self.lease_ms(lease_ms), has_record=has_record)

    def taken_over_in_ms(self, lease_ms: int) -> int:
        """When a living worker of the same lease may take over what it holds."""
        return max(0, self.lease_ms(lease_ms) - self.silent_ms)


# ── consumer groups ───────────────────────────────────────────────────────────────────────────────

# A live worker asks for jobs at least every 5 s. One that has been silent for longer than this
# is dead, and keeps its group in use only by the jobs that it holds.
SILENT_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class GroupUse(ToDict):
    """A consumer group: its consumers that were active lately, and the jobs they hold."""

    name: str
    workers: int = 0
    pending: int = 0

    @property
    def is_used(self) -> bool:
        return self.workers > 0 or self.pending > 0

    def __str__(self) -> str:
        noun = "consumer" if self.workers == 1 else "consumers"
        return f"{self.name!r} ({self.workers:,} {noun}, {self.pending:,} pending)"


def removal_command(queue: str, group: str) -> str:
    """Return the command that removes a group, quoted for a shell."""
    names = [queue, group]
    dashes = ["--"] if any(name.startswith("-") for name in names) else []
    return shlex.join(["chasqui", "group", "remove", *dashes, *names])


def removal_advice(queue: str, others: Sequence[GroupUse]) -> str:
    """Return how to remove groups that no worker uses any more."""
    them = "them" if len(others) > 1 else "it"
    commands = " and ".join(f"`{removal_command(queue, one.name)}`" for one in others)
    drain = f"run a worker of {them} until it is idle, then " if _holds(others) else ""
    return f"{drain}remove {them} with {commands}"


def group_conflict(queue: str, group: str, others: Sequence[GroupUse]) -> GroupConflict:
    """Return the error for a worker of this group, while others use the queue."""
    names = " and ".join(repr(one.name) for one in others)
    return GroupConflict(
        f"one group must consume queue {queue!r}, found {' and '.join(map(str, others))} beside "
        f"{group!r}: what one group acks is deleted for all, and each would run every job; "
        f"start this worker with group={others[0].name!r}, or give it another queue; if no worker "
        f"uses {names} any more, {removal_advice(queue, others)}",
        queue=queue,
        group=group,
        found=[one.name for one in others],
    )


def group_still_used(queue: str, group: GroupUse) -> StoreError:
    """Return the error for the removal of a group that is in use."""
    stop = f"stop its workers (a killed one counts for {SILENT_MS_MAX // 1000} s), or"
    remedy = "run a worker of it until it is idle, or" if group.pending else stop
    return StoreError(
        f"a group must be unused to be removed, found {group} on queue {queue!r}; {remedy} add "
        "--force: the jobs that it holds then run again"
    )


def _holds(others: Sequence[GroupUse]) -> bool:
    return any(one.pending for one in others)


# ── delayed jobs ──────────────────────────────────────────────────────────────────────────────────


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


# ── many queues ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class WrongType(ToDict):
    """A key of a queue that holds a value of the wrong type."""

    key: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"the key {self.key} must hold a {self.wanted}, found a {self.found}"


@dataclass(slots=True)
class Survey(ToDict):
    """Snapshots of many queues, and the queues that could not be read.

    `broken` are keys of the wrong type, `broken_queues` their queues. `unseen` are queues on
    masters that do not answer, and why. `missed` is why the queues of some masters could not even
    be listed.
    """

    snapshots: list[Snapshot]
    broken: list[WrongType]
    broken_queues: list[str]
    unseen: dict[str, StoreError]
    missed: list[StoreError]

    @property
    def silences(self) -> list[str]:
        """Why masters did not answer, each reason once."""
        return list(dict.fromkeys(map(str, (*self.missed, *self.unseen.values()))))

    def to_dict(self) -> dict[str, Any]:
        """The dict form; errors become their text."""
        return {
            "snapshots": [one.to_dict() for one in self.snapshots],
            "broken": [one.to_dict() for one in self.broken],
            "broken_queues": list(self.broken_queues),
            "unseen": {queue: str(why) for queue, why in self.unseen.items()},
            "missed": [str(why) for why in self.missed],
        }


# ── one job ───────────────────────────────────────────────────────────────────────────────────────

State = Literal["ready", "running", "delayed", "dead", "completed", "unknown"]
Source = Literal["stream", "delayed", "dlq", "outcome", "result", "history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState(ToDict):
    """What is known about one job; None where it is not known.

    `ready` waits for a worker, `running` is held by one, `delayed` waits for its time (retries
    too), `dead` was given up, `completed` is done. A job that ended long ago is `unknown` where
    nothing is kept of it, as is one that never was. `source` is where the state is known from.

    `attempt` counts runs already spent, of a job that ended all its runs. `entry_id` is the place
    in the stream or the DLQ. `worker` runs the job or ran it last; `since_ms` is when the worker
    last confirmed that it holds the job. `created_at_ms` is of the producer's clock, other times are of
    the server's; `started_at_ms` and `duration_us` are those of the last run. `data` is what the
    job carries, where `is_decoded`; `payload_bytes` is its size. `has_result` says that a result is
    kept. `waits_for` says why a `delayed` job that is due again and again does not run: no worker
    that met it has its handler. After `waits_until_ms` it is buried.
    `scanned_all` is False where the search gave up before it had seen every entry, so that
    `unknown` does not mean gone.
    """

    job_id: str
    state: State
    source: Source | None = None
    name: str | None = None
    attempt: int | None = None
    entry_id: str | None = None
    worker: str | None = None
    since_ms: int | None = None
    created_at_ms: int | None = None
    due_ms: int | None = None
    ready_at_ms: int | None = None
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    duration_us: int | None = None
    reason: str | None = None
    error: str | None = None
    waits_for: str | None = None
    waits_since_ms: int | None = None
    waits_until_ms: int | None = None
    traceback: str | None = None
    payload_bytes: int | None = None
    is_decoded: bool = False
    data: Annotated[Any, JsonForm()] = None
    has_result: bool = False
    scanned_all: bool = True
