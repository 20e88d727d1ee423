"""Checks the state of one queue: groups, workers, leases, late jobs, the DLQ; says what to do."""

from __future__ import annotations

import difflib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from chasquimq.model.delivery import DlqReason
from chasquimq.model.diagnosis import Diagnosis, error, note, ok, size_text, warning
from chasquimq.model.snapshot import (
    DelayedJob,
    GroupUse,
    Snapshot,
    WorkerSnapshot,
    WrongType,
    leases_of,
    removal_advice,
    removal_command,
)

# ── the facts ─────────────────────────────────────────────────────────────────────────────────────

DLQ_DEPTH_MAX = 100_000
# A producer has to make the stream on some servers, which a group does.
PRODUCERS_GROUP = "default"
LATE_MS_MAX = 5_000
UNIQUE_BYTES_MAX = 256 * 1024 * 1024
_NAMES_SHOWN_MAX = 5
_NAMES_COMPARED_MAX = 500
_ERROR_CHARS_MAX = 120


class RunTimes(msgspec.Struct, frozen=True):
    """How long the last handlers ran, in milliseconds; from their `completed` events."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class NameWaiting(msgspec.Struct, frozen=True):
    """Jobs of one name that wait for a handler: since when, and when the first moves to the DLQ."""

    name: str
    count: int
    since_ms: int
    until_ms: int | None


class DeadKind(msgspec.Struct, frozen=True):
    """Dead jobs of one name that died in the same way."""

    name: str
    reason: str
    error: str
    count: int


class DeadLately(msgspec.Struct, frozen=True):
    """The jobs that died within the last hour, by the entry ids of the DLQ; most frequent kind first.

    `is_complete` is False where only a part of them was read.
    """

    in_hour: int = 0
    in_minute: int = 0
    kinds: Sequence[DeadKind] = ()
    is_complete: bool = True


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the server knows about one queue; None means none, or that no process leads.

    `repeat_lag_ms` is how late the next repeatable job is. `unique_is_complete` and
    `pending_looked_at` say how far a limited search got.
    """

    snapshot: Snapshot
    groups: Sequence[GroupUse]
    workers: Sequence[WorkerSnapshot]
    ghost_count: int
    pending_looked_at: int
    run_times: RunTimes | None
    unique_count: int
    unique_bytes: int | None
    unique_is_complete: bool
    promoter: str | None
    scheduler: str | None
    repeat_lag_ms: int | None
    quarantined_count: int
    names_waiting: Sequence[NameWaiting] = ()
    dead_lately: DeadLately = DeadLately()

    def live_workers(self, lease_ms: int) -> list[WorkerSnapshot]:
        """The live workers; `lease_ms` is the lease of those that have no record."""
        return [one for one in self.workers if one.state(lease_ms) in ("alive", "silent")]


def names_waiting(jobs: Iterable[DelayedJob]) -> list[NameWaiting]:
    """The job names that no handler has, the one with most waiting jobs first."""
    found: dict[str, list[DelayedJob]] = {}
    for job in jobs:
        if job.waits_for is not None:
            found.setdefault(job.name, []).append(job)
    rows = [_name_waiting(name, many) for name, many in found.items()]
    return sorted(rows, key=lambda one: -one.count)


def _name_waiting(name: str, jobs: Sequence[DelayedJob]) -> NameWaiting:
    since_ms = min(job.waits_since_ms or 0 for job in jobs)
    ends_ms = [job.waits_until_ms for job in jobs if job.waits_until_ms is not None]
    return NameWaiting(name, len(jobs), since_ms, min(ends_ms, default=None))


# ── the checks ────────────────────────────────────────────────────────────────────────────────────


def check_types(wrong: Sequence[WrongType]) -> list[Diagnosis]:
    """A key of the wrong type, which prevents any further check of its queue."""
    remedy = "rename or delete the key; find out which program wrote it"
    return [error("keys", str(one), remedy) for one in wrong]


def check_rights(refused: str) -> list[Diagnosis]:
    """The rights that a worker of the same user would lack."""
    found, _, remedy = refused.rpartition("; ")
    needed = "a user that runs no worker needs none of them"
    return [warning("rights", found, f"{remedy}; {needed}")]


def check_queue(facts: QueueFacts, lease_ms: int) -> list[Diagnosis]:
    """Every check of a queue, in the order to read them."""
    return [
        *_group(facts),
        _live_workers(facts, lease_ms),
        *_silent_workers(facts, lease_ms),
        *_dead_workers(facts, lease_ms),
        *_handlers(facts, lease_ms),
        *_mixed_versions(facts, lease_ms),
        *_mixed_leases(facts, lease_ms),
        *_ghosts(facts),
        _promotion(facts),
        *_firing(facts),
        _dlq(facts),
        *_lease(facts, lease_ms),
        *_unique(facts),
    ]


def _group(facts: QueueFacts) -> Iterator[Diagnosis]:
    others = [one for one in facts.groups if one.name != facts.snapshot.group]
    used = [one for one in others if one.is_used]
    unused = [one for one in others if not one.is_used]
    if used:
        yield _other_groups_in_use(facts, used)
    elif not facts.snapshot.has_group:
        yield _group_missing(facts)
    elif not unused:
        yield ok("group", f"{facts.snapshot.group!r} is there")
    for one in unused:
        yield _unused_group(facts.snapshot.queue, one)


def _other_groups_in_use(facts: QueueFacts, others: Sequence[GroupUse]) -> Diagnosis:
    """Other groups use the queue: a worker of one of them is refused."""
    queue, group = facts.snapshot.queue, facts.snapshot.group
    names = " and ".join(repr(one.name) for one in others)
    unless_used = f"if no worker uses {names} any more, {removal_advice(queue, others)}"
    used = [one for one in facts.groups if one.is_used]
    if len(used) > len(others):
        found = (
            f"{len(used)} groups share the stream: {', '.join(map(str, used))}; "
            "each runs every job, and what one acks is gone for all"
        )
        return error("group", found, f"use one group: stop the workers of {names}; {unless_used}")
    verb = "is" if len(others) == 1 else "are"
    found = f"{', '.join(map(str, others))} {verb} in use: a worker of {group!r} is refused"
    return error("group", found, f"start workers of {others[0].name!r}; {unless_used}")


def _group_missing(facts: QueueFacts) -> Diagnosis:
    group = facts.snapshot.group
    if not facts.snapshot.stream_depth:
        return note("group", f"no group {group!r} yet; the first worker makes it")
    return warning("group", f"no group {group!r} yet", f"start a worker of group {group!r}")


def _unused_group(queue: str, group: GroupUse) -> Diagnosis:
    if group.name == PRODUCERS_GROUP:
        return note(
            "group", f"{group.name!r} exists as well, made by a producer; no worker uses it"
        )
    found = f"{group.name!r} exists as well, and no worker uses it"
    return warning("group", found, f"remove it with `{removal_command(queue, group.name)}`")


def _live_workers(facts: QueueFacts, lease_ms: int) -> Diagnosis:
    alive, ready = facts.live_workers(lease_ms), facts.snapshot.ready
    parked = facts.snapshot.parked
    given_back = f", {parked:,} of them given back by workers that left" if parked else ""
    if alive or not ready:
        return ok("workers", f"{len(alive)} alive, {ready:,} jobs ready{given_back}")
    group = facts.snapshot.group
    are = "1 job is" if ready == 1 else f"{ready:,} jobs are"
    found = f"{are} ready{given_back}, and no worker of {group!r} is alive"
    return error("workers", found, "start a worker")


def _silent_workers(facts: QueueFacts, lease_ms: int) -> Iterator[Diagnosis]:
    for one in facts.workers:
        if one.state(lease_ms) == "silent":
            in_s = one.taken_over_in_ms(lease_ms) / 1000
            jobs = (
                f"; its {one.pending:,} jobs are taken over in {in_s:,.0f} s" if one.pending else ""
            )
            yield note(
                "silent worker",
                f"{_worker_text(one)} sent nothing for {one.silent_ms / 1000:,.0f} s{jobs}",
            )


def _dead_workers(facts: QueueFacts, lease_ms: int) -> Iterator[Diagnosis]:
    for one in facts.workers:
        if one.pending and one.state(lease_ms) == "dead":
            silent = f"silent for {one.silent_ms // 1000:,} s"
            found = f"{_worker_text(one)} holds {one.pending:,} {'job' if one.pending == 1 else 'jobs'}, {silent}"
            remedy = "a running worker takes them over within its lease; start one"
            yield warning("dead worker", found, remedy)


def _worker_text(worker: WorkerSnapshot) -> str:
    """The name of a worker, and its host where the name does not say it."""
    host = worker.record.host if worker.record else ""
    return f"{worker.name} on {host}" if host and host not in worker.name else worker.name


def _handlers(facts: QueueFacts, lease_ms: int) -> Iterator[Diagnosis]:
    """Jobs that are retried again and again because no worker that read them has their handler."""
    live = facts.live_workers(lease_ms)
    recorded = [one for one in live if one.record is not None]
    for waiting in facts.names_waiting[:_NAMES_SHOWN_MAX]:
        lacking = [one for one in recorded if one.record and one.record.lacks(waiting.name)]
        if len(lacking) < len(recorded):
            yield _some_lack(waiting, lacking)
        else:
            yield _no_worker_has(
                facts.snapshot, waiting, _handler_names(recorded), len(live) - len(recorded)
            )
    left_out = facts.names_waiting[_NAMES_SHOWN_MAX:]
    if left_out:
        jobs = sum(one.count for one in left_out)
        found = f"{jobs:,} jobs of {len(left_out):,} more names wait for a handler"
        yield error("handlers", found, "`chasqui delayed list` names them")


def _no_worker_has(
    snapshot: Snapshot, waiting: NameWaiting, names: Sequence[str], unknown_count: int
) -> Diagnosis:
    queue = shlex.quote(snapshot.queue)
    jobs = "1 job waits" if waiting.count == 1 else f"{waiting.count:,} jobs wait"
    for_s = max(0, snapshot.at_ms - waiting.since_ms) // 1000
    left = "" if waiting.until_ms is None else _left(waiting.until_ms - snapshot.at_ms)
    others = f" ({unknown_count} do not say)" if unknown_count else ""
    near = difflib.get_close_matches(waiting.name, names[:_NAMES_COMPARED_MAX], 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    named = (
        f"a handler named {waiting.name!r}" if waiting.name else "a handler for jobs without a name"
    )
    return error(
        "handlers",
        f"{jobs} for {named}, which no live worker has{others}, for {for_s:,} s{left}{hint}",
        f"start a worker with {named}; or correct the name where the jobs are added, cancel these "
        f"(`chasqui delayed list {queue}`, `chasqui delayed cancel {queue} …`) and add them again",
    )


def _some_lack(waiting: NameWaiting, lacking: Sequence[WorkerSnapshot]) -> Diagnosis:
    names = (
        ", ".join(_worker_text(one) for one in lacking[:_NAMES_SHOWN_MAX])
        or "a worker that has left"
    )
    more = f" and {len(lacking) - _NAMES_SHOWN_MAX} more" if len(lacking) > _NAMES_SHOWN_MAX else ""
    return warning(
        "handlers",
        f"{waiting.count:,} jobs named {waiting.name!r} were put back by workers without a handler "
        f"of that name: {names}{more}",
        "give all workers of a queue the same handlers, or the jobs a queue of their own",
    )


def _left(left_ms: int) -> str:
    return f", buried in {left_ms // 1000:,} s" if left_ms > 0 else ", buried at the next try"


def _handler_names(workers: Sequence[WorkerSnapshot]) -> list[str]:
    records = [one.record for one in workers if one.record]
    return list(dict.fromkeys(name for one in records for name in one.handlers))


def _mixed_versions(facts: QueueFacts, lease_ms: int) -> Iterator[Diagnosis]:
    records = [one.record for one in facts.live_workers(lease_ms) if one.record]
    versions = Counter(one.version for one in records)
    if len(versions) > 1:
        found = " and ".join(f"{count} of {version}" for version, count in sorted(versions.items()))
        yield warning("versions", f"workers: {found}", "finish the upgrade, or take it back")


def _mixed_leases(facts: QueueFacts, lease_ms: int) -> Iterator[Diagnosis]:
    records = [one.record for one in facts.live_workers(lease_ms) if one.record]
    leases = leases_of(records)
    if len(leases) < 2:
        return
    found = " and ".join(f"{one / 1000:g} s" for one in leases)
    remedy = "give all workers of a queue the same claim_min_idle_ms"
    if leases[0] > leases[-1] // 3:
        yield warning("leases", f"workers differ: {found}", remedy)
        return
    # The longer one renews too seldom for the shorter one.
    found = f"workers differ: {found}, so those of the shortest take jobs that others still run"
    yield error("leases", found, remedy)


def _ghosts(facts: QueueFacts) -> Iterator[Diagnosis]:
    if facts.ghost_count:
        found = f"{facts.ghost_count:,} of {facts.pending_looked_at:,} pending entries have no body"
        remedy = "a program trims the stream; a worker or `chasqui upkeep` removes such entries"
        yield warning("ghosts", found, remedy)


def _promotion(facts: QueueFacts) -> Diagnosis:
    lag_ms, leader = facts.snapshot.oldest_delayed_lag_ms or 0, facts.promoter
    found = f"the first delayed job is {lag_ms / 1000:,.1f} s late" if lag_ms else "nothing is late"
    if lag_ms <= LATE_MS_MAX:
        return ok(
            "promotion", f"{found}, led by {leader}" if leader else f"{found}, no promoter leads"
        )
    if leader:
        remedy = "check the health and the log of the leader"
        return warning("promotion", f"{found}, led by {leader}", remedy)
    return error(
        "promotion", f"{found} and no promoter leads", "start a worker or `chasqui upkeep`"
    )


def _firing(facts: QueueFacts) -> Iterator[Diagnosis]:
    late = (facts.repeat_lag_ms or 0) > LATE_MS_MAX
    if late and facts.scheduler is None:
        found = f"a repeatable job is {(facts.repeat_lag_ms or 0) / 1000:,.1f} s late and no scheduler leads"
        yield error("firing", found, "start a worker or `chasqui upkeep`")
    if facts.quarantined_count:
        found = f"{facts.quarantined_count:,} repeatable jobs cannot fire and were quarantined"
        yield warning("firing", found, "`chasqui repeatable quarantined` says why; add them again")


def _dlq(facts: QueueFacts) -> Diagnosis:
    depth, lately = facts.snapshot.dlq_depth, facts.dead_lately
    if lately.in_hour:
        return _growing(facts.snapshot, lately)
    if depth <= DLQ_DEPTH_MAX:
        return ok("DLQ", f"{depth:,} entries")
    remedy = "`chasqui dlq peek` says why; then replay, export or purge"
    return warning("DLQ", f"{depth:,} entries, more than {DLQ_DEPTH_MAX:,}", remedy)


def _growing(snapshot: Snapshot, lately: DeadLately) -> Diagnosis:
    at_least = "" if lately.is_complete else "at least "
    most = lately.kinds[0]
    error_text = (
        most.error if len(most.error) <= _ERROR_CHARS_MAX else most.error[:_ERROR_CHARS_MAX] + "…"
    )
    kind = f"{most.reason}: {error_text}" if error_text else most.reason
    named = repr(most.name) if most.name else "jobs without a name"
    found = (
        f"it grows: {snapshot.dlq_depth:,} entries, {at_least}{lately.in_hour:,} of the last hour, "
        f"{lately.in_minute:,} of the last minute; most often {named} ({kind}), {most.count:,} times"
    )
    return warning("DLQ", found, _remedy_of_death(snapshot, most))


def _remedy_of_death(snapshot: Snapshot, most: DeadKind) -> str:
    queue = shlex.quote(snapshot.queue)
    replay = f"`chasqui dlq replay {queue} --reason {most.reason}`"
    if most.reason == DlqReason.UNKNOWN_NAME:
        return f"start a worker with a handler named {most.name!r}, then {replay}"
    if most.reason == DlqReason.CRASH_LOOP:
        return f"find what ends the workers (memory, native code, a kill), then {replay}"
    return f"`chasqui dlq peek {queue}` shows them; correct what fails, then {replay}"


def _lease(facts: QueueFacts, lease_ms: int) -> Iterator[Diagnosis]:
    times = facts.run_times
    if times is None:
        return
    live = facts.live_workers(lease_ms)
    silent = [one for one in live if one.record is None]
    lease_ms = min([one.lease_ms(lease_ms) for one in live], default=lease_ms)
    found = (
        f"{lease_ms / 1000:g} s; of {times.count:,} runs half took {times.p50_ms:,.1f} ms or less, "
        f"the longest {times.max_ms:,.1f} ms"
    )
    if times.max_ms <= lease_ms or (live and not silent):
        yield ok("lease", found)  # workers with a record renew it while a job runs
    else:
        remedy = "ours renew it; workers of ChasquiMQ (Rust) run such jobs twice, so raise it there"
        yield warning("lease", found, remedy)


def _unique(facts: QueueFacts) -> Iterator[Diagnosis]:
    if not facts.unique_count:
        return
    at_least = "" if facts.unique_is_complete else "at least "
    size = f", about {size_text(facts.unique_bytes)}" if facts.unique_bytes else ""
    found = f"{at_least}{facts.unique_count:,} kept{size}"
    if (facts.unique_bytes or 0) <= UNIQUE_BYTES_MAX:
        yield ok("unique ids", found)
    else:
        yield warning("unique ids", found, "use a shorter unique_for_ms")
