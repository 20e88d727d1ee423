"""Which queues a query reads, and where each of them begins and ends; asks the server for both."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chasquimq.spark.offsets import Offsets, Position, went_back
from chasquimq.spark.sources.options import EARLIEST, LATEST, Edge, Place, SourceOptions
from chasquimq.spark.sources.planning import Planner

if TYPE_CHECKING:
    from chasquimq.spark.sources.channel import Channel
    from chasquimq.store.inspect.ranges import RangeStore

_SEQ_MAX = 2**64 - 1


class Subscription:
    """The queues of a query; `only` keeps it to some of them."""

    def __init__(
        self,
        options: SourceOptions,
        channel: Channel,
        store: RangeStore,
        *,
        only: frozenset[str] | None = None,
    ) -> None:
        self.planner = Planner(options, channel, store)
        self._options = options
        self._channel = channel
        self._store = store
        self._only = only
        self._found: list[str] = []
        self._look_again_s = 0.0

    def start(self) -> Offsets:
        """Where a query begins that has not begun before."""
        return self._start(self.queues())

    def span(self) -> tuple[Offsets, Offsets]:
        """Where a query that reads once begins and ends, in all queues that have something to tell.

        A stream that ends before the beginning has, if it is read to its end, been made anew.
        """
        # A queue that appears between two looks would have an end and no beginning.
        queues = self.queues()
        start = self._start(queues)
        end = self._placed(queues, self._options.ending_offsets, otherwise=LATEST)
        is_ahead = {queue: start[queue].is_before(end[queue].entry_id) for queue in queues}
        return start, {
            queue: end[queue]
            for queue in queues
            if is_ahead[queue] or (self._ends_last(queue) and went_back(start[queue], end[queue]))
        }

    def tails(self) -> Offsets:
        """Behind the last entry of every queue."""
        return self.planner.lasts(self.queues())

    def queues(self) -> list[str]:
        """The queues that are subscribed and wanted."""
        names = self._subscribed()
        return names if self._only is None else [name for name in names if name in self._only]

    def look_again(self) -> None:
        """Look for new queues at the next call, however short ago the last look was."""
        self._look_again_s = 0.0

    def close(self) -> None:
        """Let go of the server."""
        self._store.close()

    def _subscribed(self) -> list[str]:
        pattern = self._options.subscribe_pattern
        if not pattern:
            return list(self._options.subscribe)
        # A look walks all keys of the server, so it is not taken at every trigger.
        if time.monotonic() >= self._look_again_s:
            self._found = self._store.queues(pattern, self._channel.place)
            self._look_again_s = time.monotonic() + self._options.discover_every_ms / 1_000
        return self._found

    def _start(self, queues: list[str]) -> Offsets:
        since_ms = self._options.starting_timestamp_ms
        if since_ms is None:
            return self._placed(queues, self._options.starting_offsets, otherwise=EARLIEST)
        return self.planner.at(dict.fromkeys(queues, _just_before(since_ms)))

    def _ends_last(self, queue: str) -> bool:
        place = self._options.ending_offsets
        return (place if isinstance(place, str) else place.get(queue, LATEST)) == LATEST

    def _placed(self, queues: list[str], place: Place, *, otherwise: Edge) -> Offsets:
        if isinstance(place, str):
            place = dict.fromkeys(queues, place)
        wanted = {queue: place.get(queue, otherwise) for queue in queues}
        return (
            self.planner.firsts([queue for queue, where in wanted.items() if where == EARLIEST])
            | self.planner.lasts([queue for queue, where in wanted.items() if where == LATEST])
            | self.planner.at(
                {queue: where for queue, where in wanted.items() if isinstance(where, Position)}
            )
        )


def _just_before(moment_ms: int) -> Position:
    return Position(f"{moment_ms - 1}-{_SEQ_MAX}") if moment_ms else Position()
