"""Judges a queue: does somebody work on it, and does anything lie where nobody will find it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from chasquimq.model.finding import Finding, error, note, ok, size_text, warning
from chasquimq.model.group_use import GroupUse, removal, way_out
from chasquimq.model.snapshot import Snapshot, WorkerSnapshot, WrongType

DLQ_DEPTH_MAX = 100_000
# A producer has to make the stream on some servers, which a group does.
PRODUCERS_GROUP = "default"
LATE_MS_MAX = 5_000
UNIQUE_BYTES_MAX = 256 * 1024 * 1024


class RunTimes(msgspec.Struct, frozen=True):
    """How long the last handlers ran, in milliseconds; from their `completed` events."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the server knows of one queue; None stands for nothing, or for nobody.

    `repeat_lag_ms` is how late the next repeatable job is. `unique_is_complete` and
    `pending_looked_at` say how far a bounded search got.
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


def check_types(wrong: Sequence[WrongType]) -> list[Finding]:
    """A queue with a key of the wrong type cannot be looked at any further."""
    remedy = "rename or delete the key; find out which program wrote it"
    return [error("keys", str(one), remedy) for one in wrong]


def check_rights(refused: str) -> list[Finding]:
    """Why a worker of the same user would not start."""
    found, _, remedy = refused.rpartition("; ")
    needed = "a user that runs no worker needs none of them"
    return [warning("rights", found, f"{remedy}; {needed}")]


def check_queue(facts: QueueFacts, lease_ms: int) -> list[Finding]:
    """Every check of a queue, in the order to read them."""
    return [
        *_group(facts),
        _somebody_works(facts, lease_ms),
        *_dead_workers(facts, lease_ms),
        *_ghosts(facts),
        _promotion(facts),
        *_firing(facts),
        _dlq(facts),
        *_lease(facts, lease_ms),
        *_unique(facts),
    ]


def _group(facts: QueueFacts) -> Iterator[Finding]:
    others = [one for one in facts.groups if one.name != facts.snapshot.group]
    used = [one for one in others if one.is_used]
    left_over = [one for one in others if not one.is_used]
    if used:
        yield _in_the_way(facts, used)
    elif not facts.snapshot.has_group:
        yield _missing(facts)
    elif not left_over:
        yield ok("group", f"{facts.snapshot.group!r} is there")
    for one in left_over:
        yield _left_over(facts.snapshot.queue, one)


def _in_the_way(facts: QueueFacts, others: Sequence[GroupUse]) -> Finding:
    """A worker of the group is refused, or was there first, and then the others are."""
    queue, group = facts.snapshot.queue, facts.snapshot.group
    names = " and ".join(repr(one.name) for one in others)
    unless_used = f"if no worker uses {names} any more, {way_out(queue, others)}"
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


def _missing(facts: QueueFacts) -> Finding:
    group = facts.snapshot.group
    if not facts.snapshot.stream_depth:
        return note("group", f"no group {group!r} yet; the first worker makes it")
    return warning("group", f"no group {group!r} yet", f"start a worker of group {group!r}")


def _left_over(queue: str, group: GroupUse) -> Finding:
    if group.name == PRODUCERS_GROUP:
        return note("group", f"{group.name!r} is there as well, made by a producer; nobody uses it")
    found = f"{group.name!r} is there as well, and nobody uses it"
    return warning("group", found, f"remove it with `{removal(queue, group.name)}`")


def _somebody_works(facts: QueueFacts, lease_ms: int) -> Finding:
    alive = [one for one in facts.workers if one.state(lease_ms) == "alive"]
    ready = facts.snapshot.ready
    if alive or not ready:
        return ok("workers", f"{len(alive)} alive, {ready:,} jobs ready")
    found = f"{ready:,} jobs are ready and no worker of {facts.snapshot.group!r} is alive"
    return error("workers", found, "start a worker")


def _dead_workers(facts: QueueFacts, lease_ms: int) -> Iterator[Finding]:
    for one in facts.workers:
        if one.pending and one.state(lease_ms) == "dead":
            found = f"{one.name} holds {one.pending:,} jobs, silent for {one.idle_ms // 1000:,} s"
            remedy = "a running worker takes them over within its lease; start one"
            yield warning("dead worker", found, remedy)


def _ghosts(facts: QueueFacts) -> Iterator[Finding]:
    if facts.ghost_count:
        found = f"{facts.ghost_count:,} of {facts.pending_looked_at:,} pending entries have no body"
        remedy = "somebody trims the stream; a worker or `chasqui upkeep` sweeps them"
        yield warning("ghosts", found, remedy)


def _promotion(facts: QueueFacts) -> Finding:
    lag_ms, leader = facts.snapshot.oldest_delayed_lag_ms or 0, facts.promoter
    found = f"the first delayed job is {lag_ms / 1000:,.1f} s late" if lag_ms else "nothing is late"
    if lag_ms <= LATE_MS_MAX:
        return ok("promotion", f"{found}, led by {leader}" if leader else f"{found}, nobody leads")
    if leader:
        remedy = "look at the health and the log of the leader"
        return warning("promotion", f"{found}, led by {leader}", remedy)
    return error("promotion", f"{found} and nobody leads", "start a worker or `chasqui upkeep`")


def _firing(facts: QueueFacts) -> Iterator[Finding]:
    late = (facts.repeat_lag_ms or 0) > LATE_MS_MAX
    if late and facts.scheduler is None:
        found = f"a repeatable job is {(facts.repeat_lag_ms or 0) / 1000:,.1f} s late, nobody leads"
        yield error("firing", found, "start a worker or `chasqui upkeep`")
    if facts.quarantined_count:
        found = f"{facts.quarantined_count:,} repeatable jobs cannot fire and were put aside"
        yield warning("firing", found, "`chasqui repeatable quarantined` says why; plan them anew")


def _dlq(facts: QueueFacts) -> Finding:
    depth = facts.snapshot.dlq_depth
    if depth <= DLQ_DEPTH_MAX:
        return ok("DLQ", f"{depth:,} entries")
    remedy = "`chasqui dlq peek` says why; then replay, export or purge"
    return warning("DLQ", f"{depth:,} entries, more than {DLQ_DEPTH_MAX:,}", remedy)


def _lease(facts: QueueFacts, lease_ms: int) -> Iterator[Finding]:
    times = facts.run_times
    if times is None:
        return
    found = (
        f"{lease_ms / 1000:g} s; of {times.count:,} runs half took {times.p50_ms:,.1f} ms or less, "
        f"the longest {times.max_ms:,.1f} ms"
    )
    if times.max_ms <= lease_ms:
        yield ok("lease", found)
    else:
        remedy = "ours renew it; workers of the original run such jobs twice, so raise it there"
        yield warning("lease", found, remedy)


def _unique(facts: QueueFacts) -> Iterator[Finding]:
    if not facts.unique_count:
        return
    at_least = "" if facts.unique_is_complete else "at least "
    size = f", about {size_text(facts.unique_bytes)}" if facts.unique_bytes else ""
    found = f"{at_least}{facts.unique_count:,} kept{size}"
    if (facts.unique_bytes or 0) <= UNIQUE_BYTES_MAX:
        yield ok("unique ids", found)
    else:
        yield warning("unique ids", found, "use a shorter unique_for_ms")
