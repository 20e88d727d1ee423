"""Counts what became of the demo's jobs, as the worker and the DLQ tell of it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from chasquimq.job import Job

if TYPE_CHECKING:
    from chasquimq.queue import Queue

PEEK_JOBS = 1_000


class Grave(NamedTuple):
    """What jobs in the DLQ have in common."""

    name: str
    reason: str
    error: str


class Tally:
    """Counts by job name; a job is counted only after the server has confirmed its outcome."""

    def __init__(self) -> None:
        self.added: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.graves: Counter[Grave] = Counter()
        self.last_end_s = 0.0

    @property
    def finished_count(self) -> int:
        return self.completed.total() + self.dead.total()

    def note_completed(self, job: Job) -> None:
        self.completed[job.name] += 1
        self.last_end_s = time.perf_counter()

    def note_failed(self, job: Job) -> None:
        # A failure that ended its job has a reason, and is counted among the dead.
        if not job.reason:
            self.retried[job.name] += 1

    def note_dead(self, job: Job) -> None:
        self.dead[job.name] += 1
        self.last_end_s = time.perf_counter()

    async def read_graves(self, queue: Queue) -> None:
        """Walk the whole DLQ, page by page; nothing moves."""
        after: str | None = None
        while letters := await queue.peek_dlq(PEEK_JOBS, after=after):
            for letter in letters:
                self.graves[Grave(letter["name"], letter["reason"], letter["error"] or "")] += 1
            after = letters[-1]["dlq_id"]
