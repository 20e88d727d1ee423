"""Names the streams that one consumer reads, and sorts entries by them.

Every queue has its own stream, lane 0. Whoever reads it alone pays nothing for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from chasquimq.model.delivery import entry_key, lane_and_id

if TYPE_CHECKING:
    from chasquimq.wire.keys import QueueKeys


class _InLane(Protocol):
    @property
    def lane(self) -> int: ...


_Move = TypeVar("_Move", bound=_InLane)
# The key of an entry, and the number of deliveries that it is charged with.
Count = tuple[bytes, int]
_lane_of = attrgetter("lane")


class Lane(NamedTuple):
    """A stream, and where its jobs wait for their next run."""

    number: int
    stream: str
    delayed: str
    dix: str

    def key(self, entry_id: bytes) -> bytes:
        """What tells an entry of this stream from those of others."""
        return entry_key(self.number, entry_id)


class Lanes:
    """The lanes of one consumer, the queue's own stream first."""

    def __init__(self, keys: QueueKeys, others: Sequence[Lane] = ()) -> None:
        self.main = Lane(0, keys.stream, keys.delayed, keys.dix)
        self.is_single = not others
        self._by_number = {lane.number: lane for lane in (self.main, *others)}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._by_number.values())

    def __getitem__(self, number: int) -> Lane:
        return self._by_number[number]

    def runs(self, moves: Sequence[_Move]) -> Iterator[tuple[Lane, Sequence[_Move]]]:
        """Cut moves where the lane changes; their order stays."""
        if self.is_single:
            yield self.main, moves
            return
        for number, run in groupby(moves, _lane_of):
            yield self._by_number[number], list(run)

    def runs_of_ids(self, keys: Sequence[bytes]) -> Iterator[tuple[Lane, Sequence[bytes]]]:
        """The entry ids that these keys name, cut where the lane changes; their order stays."""
        for number, run in groupby(map(lane_and_id, keys), itemgetter(0)):
            yield self._by_number[number], [entry_id for _, entry_id in run]

    def ids(self, keys: Iterable[bytes]) -> Iterator[tuple[Lane, Iterable[bytes]]]:
        """The entry ids of each lane that these keys name."""
        if self.is_single:
            yield self.main, keys
            return
        found: dict[int, list[bytes]] = {}
        for number, entry_id in map(lane_and_id, keys):
            found.setdefault(number, []).append(entry_id)
        for number, entry_ids in found.items():
            yield self._by_number[number], entry_ids

    def counts(self, counts: Sequence[Count]) -> Iterator[tuple[Lane, Sequence[Count]]]:
        """The counts of each lane, with entry ids in place of keys."""
        if self.is_single:
            yield self.main, counts
            return
        by_key = dict(counts)
        for lane, entry_ids in self.ids(by_key):
            yield lane, [(one, by_key[lane.key(one)]) for one in entry_ids]
