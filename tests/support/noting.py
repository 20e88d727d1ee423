"""Handlers whose starts and ends go to a journal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from support.journal import END_ERR, END_OK, LEASE_LOST, START, Journal

Handler = Callable[[Any], Any]


def noting(handler: Handler, journal: Callable[[], Journal]) -> Handler:
    """The same handler; the journal is asked for at each run, because a fork has its own."""
    if not inspect.iscoroutinefunction(handler):
        return _noting_sync(handler, journal)

    @wraps(handler)
    async def run(job: Any) -> Any:
        note(journal(), START, job)
        try:
            value = await handler(job)
        except BaseException:
            note(journal(), END_ERR, job)
            raise
        note(journal(), END_OK, job)
        return value

    return run


def note(journal: Journal, event: str, job: Any) -> None:
    delivery = job.delivery
    generation = (delivery.extras or {}).get("generation", 0)
    journal.note(
        event, job.id, job.attempt, generation=generation, delivery=delivery.entry_id.decode(),
        extra=delivery.due_ms or "",
    )  # fmt: skip


def note_lost_lease(journal: Callable[[], Journal]) -> Handler:
    """A hook for `on_lease_lost`."""
    return lambda job: note(journal(), LEASE_LOST, job)


def _noting_sync(handler: Handler, journal: Callable[[], Journal]) -> Handler:
    @wraps(handler)
    def run(job: Any) -> Any:
        note(journal(), START, job)
        try:
            value = handler(job)
        except BaseException:
            note(journal(), END_ERR, job)
            raise
        note(journal(), END_OK, job)
        return value

    return run
