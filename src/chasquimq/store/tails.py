"""Follows the events of several queues of a cluster, whose streams are on different nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chasquimq.store.route import Route
from chasquimq.store.tailing import EventTail, TailedEntry

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings


def open_tail(
    queues: Sequence[str],
    connection: ConnectionSettings,
    *,
    after_id: str,
    block_ms: int,
    count: int,
) -> EventTail | ManyTails:
    """A tail of these queues; nothing is dialled before the first read."""

    def tail(some: Sequence[str]) -> EventTail:
        settings = replace(connection, queue=some[0])
        return EventTail(some, settings, after_id=after_id, block_ms=block_ms, count=count)

    if len(queues) == 1 or not Route(connection).is_cluster:
        return tail(queues)
    return ManyTails([tail([queue]) for queue in dict.fromkeys(queues)])


class ManyTails:
    """One tail a queue, all read at once; what one of them brings waits for nobody."""

    def __init__(self, tails: Sequence[EventTail]) -> None:
        self._tails = tails
        self._reading: dict[EventTail, asyncio.Task[list[TailedEntry]]] = {}

    @property
    def last_ids(self) -> dict[str, str]:
        """Where a later tail would go on, for each queue."""
        return {queue: after for tail in self._tails for queue, after in tail.last_ids.items()}

    async def read(self) -> list[TailedEntry]:
        """The next entries of any queue; an empty list when none came while blocking."""
        self._drop_foreign()
        for tail in self._tails:
            if tail not in self._reading:
                self._reading[tail] = asyncio.create_task(tail.read(), name="chasqui-tail")
        # A reader that gives up leaves the reads under way: what they bring comes next time.
        await asyncio.wait(self._reading.values(), return_when=asyncio.FIRST_COMPLETED)
        done = [tail for tail, task in self._reading.items() if task.done()]
        entries = [one for tail in done if self._brought(tail) for one in self._take(tail)]
        if not entries:
            for tail in done:
                self._reading.pop(tail).result()
        return entries

    def _drop_foreign(self) -> None:
        """Leave reads to the loop that began them; they moved nothing on."""
        loop = asyncio.get_running_loop()
        self._reading = {
            tail: task for tail, task in self._reading.items() if task.get_loop() is loop
        }

    def _brought(self, tail: EventTail) -> bool:
        task = self._reading[tail]
        return not task.cancelled() and task.exception() is None and bool(task.result())

    def _take(self, tail: EventTail) -> list[TailedEntry]:
        return self._reading.pop(tail).result()

    async def close(self) -> None:
        for tail in self._tails:
            await tail.close()
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
