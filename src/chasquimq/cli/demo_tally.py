"""Counts what became of the demo's jobs, as the worker tells of it."""

from __future__ import annotations

import functools
import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from chasquimq.errors import UnrecoverableError
from chasquimq.job import Job
from chasquimq.model.reason import DlqReason


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
        self._errors: dict[str, Exception] = {}

    @property
    def finished_count(self) -> int:
        return self.completed.total() + self.dead.total()

    def note_completed(self, job: Job) -> None:
        self.completed[job.name] += 1
        self.last_end_s = time.perf_counter()

    def note_retried(self, job: Job) -> None:
        self.retried[job.name] += 1

    def note_dead(self, job: Job) -> None:
        self.dead[job.name] += 1
        self.graves[_grave(job, self._errors.pop(job.id, None))] += 1
        self.last_end_s = time.perf_counter()

    def watched(self, handlers: Mapping[str, Callable[[Job], Any]]) -> dict[str, Any]:
        """The same handlers; the error a job ended with is remembered for its grave."""
        return {
            name: self._watched(handler) if inspect.iscoroutinefunction(handler) else handler
            for name, handler in handlers.items()
        }

    def _watched(self, handler: Callable[[Job], Any]) -> Callable[[Job], Any]:
        @functools.wraps(handler)
        async def run(job: Job) -> None:
            try:
                await handler(job)
            except Exception as error:
                self._errors[job.id] = error
                raise

        return run


def _grave(job: Job, error: Exception | None) -> Grave:
    is_unrecoverable = isinstance(error, UnrecoverableError)
    reason = DlqReason.UNRECOVERABLE if is_unrecoverable else DlqReason.RETRIES_EXHAUSTED
    return Grave(job.name, reason.value, f"{type(error).__name__}: {error}")
