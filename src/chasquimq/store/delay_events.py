"""Tells the events stream of delayed adds: after the fact, and waited for by nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.store.add_write import AddMark
from chasquimq.store.recording import EventStore

if TYPE_CHECKING:
    from chasquimq.model.options import Wait
    from chasquimq.store.link import Link
    from chasquimq.wire.new_job import NewJob


class DelayEvents(EventStore):
    """The `delayed` events of one producer; those of a loop tick leave in one write."""

    def __init__(self, queue: str, max_len: int, link: Link) -> None:
        super().__init__(queue, "", max_len, link)
        self._lines: list[bytes] = []

    def added(self, jobs: Sequence[NewJob], marks: Sequence[AddMark]) -> None:
        """A write was confirmed; jobs that were there before, or were due at once, are not told."""
        now_ms, delayed = time.time_ns() // 1_000_000, self._spell.delayed
        lines = [
            delayed(job.job_id, job.name, now_ms, *_wait(job.wait, now_ms))
            for job, mark in zip(jobs, marks, strict=True)
            if mark is AddMark.ADDED and job.wait is not None and _is_ahead(job.wait, now_ms)
        ]
        if lines and not self._lines:
            asyncio.get_running_loop().call_soon(self.flush)
        self._lines += lines

    def flush(self) -> None:
        """Send what was gathered in this tick."""
        lines, self._lines = self._lines, []
        self._send(lines)


def _is_ahead(wait: Wait, now_ms: int) -> bool:
    return not wait.is_absolute or wait.ms > now_ms


def _wait(wait: Wait, now_ms: int) -> tuple[int, int | None]:
    """How long, and until when: a wait for so long gets its due time from the server's clock."""
    return (wait.ms - now_ms, wait.ms) if wait.is_absolute else (wait.ms, None)
