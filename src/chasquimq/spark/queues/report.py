"""What became of rows: by task, and all together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(slots=True)
class TaskReport(WriterCommitMessage):
    """The figures of one attempt of a task; of a dry run, `added` is what would be added."""

    run: str = ""
    partition: int = 0
    rows: int = 0
    added: int = 0
    duplicates: int = 0
    conflicts: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def skipped(self) -> int:
        return sum(self.faults.values())

    def note_faults(self, faults: dict[str, int]) -> None:
        for what, count in faults.items():
            self.faults[what] = self.faults.get(what, 0) + count


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a whole write.

    `rows` were read; `added` are new jobs, `duplicates` were in the queue already, be it from an
    attempt of the same task that failed, `conflicts` have the id of another job, which stays, and
    `skipped` could not become jobs: `faults` says why.
    `task_s` is the time of all tasks together, `waited_s` their part that the pace took.
    """

    run: str
    tasks: int
    rows: int
    added: int
    duplicates: int
    conflicts: int
    skipped: int
    payload_bytes: int
    task_s: float
    waited_s: float
    faults: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Summary:
        return cls(**json.loads(text))


def summary_of(reports: Iterable[TaskReport]) -> Summary:
    """All tasks of a write together."""
    every = list(reports)
    total = TaskReport()
    for one in every:
        total.note_faults(one.faults)
    return Summary(
        run=every[0].run if every else "",
        tasks=len(every),
        rows=sum(one.rows for one in every),
        added=sum(one.added for one in every),
        duplicates=sum(one.duplicates for one in every),
        conflicts=sum(one.conflicts for one in every),
        skipped=total.skipped,
        payload_bytes=sum(one.payload_bytes for one in every),
        task_s=round(sum(one.seconds for one in every), 3),
        waited_s=round(sum(one.waited_s for one in every), 3),
        faults=total.faults,
    )


def faults_text(faults: dict[str, int]) -> str:
    """The faults in words, the most frequent first."""
    ordered = sorted(faults.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count:,} with {what}" for what, count in ordered)
