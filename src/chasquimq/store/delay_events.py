"""Tells the events stream of delayed adds: after the fact, and waited for by nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.model.log import get_logger
from chasquimq.model.pace import Pace
from chasquimq.store.add_write import AddMark
from chasquimq.store.event_lines import EventLines
from chasquimq.store.wall_clock import wall_ms
from chasquimq.wire.event_command import EventSpeller
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.model.options import Wait
    from chasquimq.store.link import Link
    from chasquimq.wire.new_job import NewJob


logger = get_logger(__name__)


class DelayEvents:
    """The `delayed` events of one producer; those of a loop tick leave in one write."""

    def __init__(self, queue: str, max_len: int, link: Link) -> None:
        self._queue = queue
        self._spell = EventSpeller(QueueKeys(queue).events, max_len, worker="")
        self._lines = EventLines(link, self._spell.trim, on_drop=self._tell_drop)
        self._gathered: list[bytes] = []
        self._pace = Pace()

    @property
    def dropped_count(self) -> int:
        """Events that are not in the stream."""
        return self._lines.dropped_count

    @property
    def unproven_count(self) -> int:
        """Events whose reply was lost, so that nobody knows whether they are in the stream."""
        return self._lines.unproven_count

    def added(self, jobs: Sequence[NewJob], marks: Sequence[AddMark]) -> None:
        """A write was confirmed; jobs that were there before, or were due at once, are not told."""
        now_ms, delayed = wall_ms(), self._spell.delayed
        lines = [
            delayed(job.job_id, job.name, now_ms, *_wait(job.wait, now_ms))
            for job, mark in zip(jobs, marks, strict=True)
            if mark is AddMark.ADDED and job.wait is not None and _is_ahead(job.wait, now_ms)
        ]
        if lines and not self._gathered:
            asyncio.get_running_loop().call_soon(self.flush)
        self._gathered += lines

    def flush(self) -> None:
        """Send what was gathered in this tick."""
        lines, self._gathered = self._gathered, []
        self._lines.send(lines)

    def _tell_drop(self, count: int) -> None:
        # A producer has no sink that could show the count.
        if self._pace.allows():
            logger.warning(
                "%d events of delayed adds to queue %s were dropped; the jobs were added%s",
                count, self._queue, self._pace.held_back_text(),
                extra={"queue": self._queue, "count": count},
            )  # fmt: skip


def _is_ahead(wait: Wait, now_ms: int) -> bool:
    return not wait.is_absolute or wait.ms > now_ms


def _wait(wait: Wait, now_ms: int) -> tuple[int, int | None]:
    """How long, and until when: a wait for so long gets its due time from the server's clock."""
    return (wait.ms - now_ms, wait.ms) if wait.is_absolute else (wait.ms, None)
