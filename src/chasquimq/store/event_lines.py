"""Sends lines to an events stream without waiting, and counts those that may not be in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chasquimq.errors import ConnectionLost

if TYPE_CHECKING:
    import asyncio

    from chasquimq.store.connection import Reply
    from chasquimq.store.link import Link

# Beyond this the server is behind with events, and more of them would only delay the jobs.
_UNANSWERED_MAX = 20_000
# So many events may stand beyond the cap for each writer.
_LINES_PER_TRIM = 1_000


class EventLines:
    """The way of one writer to one stream; a call never waits and never raises.

    `dropped_count` counts lines that are not in the stream. Those whose reply was lost may be:
    they are in `unproven_count` alone. `on_drop` hears of each loss, with its size.
    """

    def __init__(
        self, link: Link, trim: bytes, on_drop: Callable[[int], None] | None = None
    ) -> None:
        self._link = link
        self._trim = trim
        self._on_drop = on_drop
        self._unanswered = 0
        # Whoever was here before may have left the stream longer than we keep it.
        self._untrimmed = _LINES_PER_TRIM
        self.dropped_count = 0
        self.unproven_count = 0

    def send(self, lines: list[bytes]) -> None:
        connection = self._link.current
        if not lines:
            return
        if connection is None or self._unanswered > _UNANSWERED_MAX:
            self._drop(len(lines))
            return
        count = len(lines)
        self._unanswered += count
        self._untrimmed += count
        if self._untrimmed >= _LINES_PER_TRIM:
            lines.append(self._trim)
            self._untrimmed = 0
        answer = connection.send(b"".join(lines), len(lines))
        answer.add_done_callback(lambda done: self._answered(count, done))

    def _answered(self, count: int, answer: asyncio.Future[list[Reply]]) -> None:
        self._unanswered -= count
        if answer.cancelled():
            self.unproven_count += count
        elif (error := answer.exception()) is not None:
            self._lost(count, error)
        else:
            # An event that was written is answered by its id.
            self._drop(count - list(map(type, answer.result())).count(bytes))

    def _lost(self, count: int, error: BaseException) -> None:
        if isinstance(error, ConnectionLost) and error.outcome == "not_done":
            self._drop(count)
        else:
            self.unproven_count += count

    def _drop(self, count: int) -> None:
        if not count:
            return
        self.dropped_count += count
        if self._on_drop is not None:
            self._on_drop(count)
