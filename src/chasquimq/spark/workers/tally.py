"""Adds up what the tasks of a run have done, and says who is alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chasquimq.spark.workers.board import Record

# A task beats every second; one that is silent for so long is dead, or was never seen again.
ALIVE_S: Final = 15.0
FORGET_S: Final = 300.0
_SUMMED: Final = (
    "completed", "failed", "retried", "buried", "handed_back", "leases_lost", "cpu_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run at one moment; totals count since it began, those of dead tasks up to their last note."""

    alive: int
    tasks: int
    starts: int
    completed: int
    failed: int
    retried: int
    buried: int
    handed_back: int
    leases_lost: int
    cpu_s: float
    running: int
    seconds: float


class Tally:
    """Remembers the last note of every attempt; the clock is the caller's."""

    def __init__(self, tasks: int, now_s: float) -> None:
        self._tasks = tasks
        self._began_s = now_s
        self._last: dict[int, tuple[Record, float]] = {}
        self._folded: dict[str, float] = dict.fromkeys(_SUMMED, 0)
        self._starts = 0

    def note(self, records: Iterable[Record], now_s: float) -> None:
        """Take in what the board says now."""
        for record in records:
            known = self._last.get(record.attempt)
            if known is None:
                self._starts += 1
            if known is None or _says(known[0]) != _says(record):
                self._last[record.attempt] = (record, now_s)

    def over(self, now_s: float) -> list[Record]:
        """Attempts that are silent for long: their figures stay, their notes may go."""
        silent = [one for one, seen_s in self._last.values() if now_s - seen_s > FORGET_S]
        for record in silent:
            del self._last[record.attempt]
            for name in _SUMMED:
                self._folded[name] += getattr(record, name)
        return silent

    def records(self) -> list[Record]:
        """The last note of every attempt that is not over."""
        return [one for one, _ in self._last.values()]

    def progress(self, now_s: float) -> Progress:
        """The sums, and who is alive."""
        alive = self._alive(now_s)
        sums: dict[str, Any] = {name: self._sum(name) for name in _SUMMED}
        return Progress(
            alive=len(alive),
            tasks=self._tasks,
            starts=self._starts,
            running=sum(one.running for one in alive),
            seconds=now_s - self._began_s,
            **sums,
        )

    def _alive(self, now_s: float) -> list[Record]:
        """One attempt of a task at most: a newer one was started because the older is dead."""
        latest = {one.partition: (one, seen_s) for _, (one, seen_s) in sorted(self._last.items())}
        return [one for one, seen_s in latest.values() if _is_alive(one, now_s - seen_s)]

    def _sum(self, name: str) -> float:
        living = sum(getattr(one, name) for one, _ in self._last.values())
        total = self._folded[name] + living
        return round(total, 3) if name == "cpu_s" else int(total)


def _says(record: Record) -> tuple[int, bool]:
    return record.beat, record.has_ended


def _is_alive(record: Record, silent_s: float) -> bool:
    return not record.has_ended and silent_s < ALIVE_S
