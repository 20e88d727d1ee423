"""Which consumer groups use a queue, and the way out for a worker of another one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from chasquimq.errors import GroupConflict, StoreError
from chasquimq.model.json_value import ToDict

# A live worker asks for jobs at least every 5 s. One that has been silent for longer than this
# is dead, and keeps its group in use only by the jobs that it holds.
SILENT_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class GroupUse(ToDict):
    """A consumer group: its consumers that the server heard of lately, and the jobs they hold."""

    name: str
    workers: int = 0
    pending: int = 0

    @property
    def is_used(self) -> bool:
        return self.workers > 0 or self.pending > 0

    def __str__(self) -> str:
        noun = "consumer" if self.workers == 1 else "consumers"
        return f"{self.name!r} ({self.workers:,} {noun}, {self.pending:,} pending)"


def removal(queue: str, group: str) -> str:
    """The command that removes a group, as a shell takes it."""
    names = [queue, group]
    dashes = ["--"] if any(name.startswith("-") for name in names) else []
    return shlex.join(["chasqui", "group", "remove", *dashes, *names])


def way_out(queue: str, others: Sequence[GroupUse]) -> str:
    """How to get rid of groups that no worker uses any more."""
    them = "them" if len(others) > 1 else "it"
    commands = " and ".join(f"`{removal(queue, one.name)}`" for one in others)
    drain = f"run a worker of {them} until it is idle, then " if _holds(others) else ""
    return f"{drain}remove {them} with {commands}"


def conflict(queue: str, group: str, others: Sequence[GroupUse]) -> GroupConflict:
    """The refusal of a worker, while others use the queue."""
    names = " and ".join(repr(one.name) for one in others)
    return GroupConflict(
        f"one group must consume queue {queue!r}, found {' and '.join(map(str, others))} beside "
        f"{group!r}: what one group acks is deleted for all, and each would run every job; "
        f"start this worker with group={others[0].name!r}, or give it another queue; if no worker "
        f"uses {names} any more, {way_out(queue, others)}",
        queue=queue,
        group=group,
        found=[one.name for one in others],
    )


def still_used(queue: str, group: GroupUse) -> StoreError:
    """The refusal to remove a group."""
    stop = f"stop its workers (a killed one counts for {SILENT_MS_MAX // 1000} s), or"
    remedy = "run a worker of it until it is idle, or" if group.pending else stop
    return StoreError(
        f"a group must be unused to be removed, found {group} on queue {queue!r}; {remedy} add "
        "--force: the jobs that it holds then run again"
    )


def _holds(others: Sequence[GroupUse]) -> bool:
    return any(one.pending for one in others)
