"""Plans which ranges of the streams a query reads, shares them out to tasks, and notices losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from chasquimq.errors import EntriesLost
from chasquimq.spark.offsets import (
    Offsets,
    Position,
    count_at_edge,
    first_position,
    id_parts,
    is_inside,
    is_plausible,
    last_position,
    lost_between,
    went_back,
)
from chasquimq.spark.sources.channel import Channel
from chasquimq.spark.sources.options import SourceOptions
from chasquimq.store.inspect.ranges import NO_ENTRY, RangeStore, StreamFacts, Stretch

# A task that fails is run again from its beginning, so it should not be a long one.
_ROWS_PER_TASK_MAX = 250_000
# What happened to the entries: removed to keep the stream short, or gone with the whole stream.
TRIMMED: Final = "trimmed"
RESET: Final = "reset"
_CAUSES = {
    TRIMMED: "trimmed before they were read",
    RESET: "lost when the stream was deleted, re-created or rolled back",
}
_UNLIMITED = 2**53
# Pieces that a task is put together from: the more, the more even, and the more questions.
_PIECES_PER_TASK = 8


class StreamRange(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of a queue after one id up to another.

    `entry_count` is how many there must be, lost ones included; None: not counted.
    `found_count` is how many were there when it was planned.
    `loss` names a loss that is known already, but not how large it is.
    """

    queue: str
    after_id: str
    until_id: str
    entry_count: int | None
    row_count: int
    found_count: int = 0
    loss: str = ""


class ReadTask(InputPartition):
    """What one task reads: ranges of one queue or of many."""

    def __init__(self, ranges: Sequence[StreamRange]) -> None:
        super().__init__(tuple(ranges))

    @property
    def ranges(self) -> tuple[StreamRange, ...]:
        return self.value


def share_out(pieces: Sequence[StreamRange], tasks_min: int) -> list[ReadTask]:
    """Tasks with about the same number of rows each; neighbours of a queue become one range."""
    total = sum(_weight(piece) for piece in pieces)
    task_count = max(tasks_min, ceil(total / _ROWS_PER_TASK_MAX))
    bucket_of: dict[int, int] = {}
    passed = 0
    for at, piece in enumerate(pieces):
        # The middle of a piece decides, so that a piece on a border goes where most of it is.
        bucket_of[at] = (2 * passed + _weight(piece)) * task_count // (2 * total)
        passed += _weight(piece)
    buckets = groupby(range(len(pieces)), key=bucket_of.__getitem__)
    return [ReadTask(_merged([pieces[at] for at in places])) for _, places in buckets]


def _weight(piece: StreamRange) -> int:
    return max(1, piece.row_count)


def _merged(pieces: Sequence[StreamRange]) -> list[StreamRange]:
    merged: list[StreamRange] = []
    for piece in pieces:
        if merged and merged[-1].queue == piece.queue:
            merged[-1] = _union(merged[-1], piece)
        else:
            merged.append(piece)
    return merged


def _union(first: StreamRange, second: StreamRange) -> StreamRange:
    is_counted = first.entry_count is not None and second.entry_count is not None
    return msgspec.structs.replace(
        first,
        until_id=second.until_id,
        entry_count=(first.entry_count or 0) + (second.entry_count or 0) if is_counted else None,
        row_count=first.row_count + second.row_count,
        found_count=first.found_count + second.found_count,
    )


def loss_sentence(label: str, lost: int | None) -> str:
    """What is missing and why, in words."""
    number = "entries, of unknown number," if lost is None else f"{lost} entries"
    return f"{number} were {_CAUSES[label]}"


def entries_lost(
    queue: str, place: str, after_id: str, label: str, lost: int | None
) -> EntriesLost:
    """The error for a query that must not lose any."""
    return EntriesLost(
        f"every entry of the {place} of queue {queue!r} must be read, but after {after_id} "
        f"{loss_sentence(label, lost)}; read more often or keep more, "
        "or set failOnDataLoss=false (chasqui pipeline: leave --fail-on-data-loss out) to go on "
        "and have the loss written down",
        queue=queue,
        lost=lost,
    )


class Planner:
    """Turns positions into further positions, and two positions into ranges.

    What it remembers between two calls saves a second walk and never changes an answer.
    """

    def __init__(self, options: SourceOptions, channel: Channel, store: RangeStore) -> None:
        self._options = options
        self._channel = channel
        self._store = store
        # Behind the last entries, as of the last advance.
        self.tails: Offsets = {}
        self._walks: dict[str, tuple[Position, Position, list[Stretch]]] = {}

    def firsts(self, queues: Sequence[str]) -> Offsets:
        """Before the first entry of each queue."""
        return {queue: first_position(facts) for queue, facts in self._facts(queues).items()}

    def lasts(self, queues: Sequence[str]) -> Offsets:
        """Behind the last entry of each queue."""
        return {queue: last_position(facts) for queue, facts in self._facts(queues).items()}

    def at(self, places: Offsets) -> Offsets:
        """The same places, which need not be those of entries, with their counts."""
        facts = self._facts([queue for queue, place in places.items() if place.count is None])
        return places | {queue: self._at(queue, places[queue], facts[queue]) for queue in facts}

    def advance(
        self, start: Offsets, queues: Sequence[str], rows_max: int | None, target: Offsets | None
    ) -> Offsets:
        """As far as the rows allow, and a target if there is one; a new queue is only noted."""
        facts = self._facts(queues)
        self.tails = {queue: last_position(facts[queue]) for queue in queues}
        known = [queue for queue in queues if queue in start]
        backlogs = {queue: _backlog(start[queue], facts[queue]) for queue in known}
        total = max(1, sum(backlogs.values()))
        end = dict(start)
        for queue in known:
            share = None if rows_max is None else max(1, rows_max * backlogs[queue] // total)
            until = (target or self.tails).get(queue, start[queue])
            end[queue] = self._advance(queue, start[queue], until.entry_id, facts[queue], share)
        # The next batch reads it from there, and so its losses are counted from there too.
        return end | {queue: first_position(facts[queue]) for queue in queues if queue not in start}

    def ranges(self, start: Offsets, end: Offsets) -> list[StreamRange]:
        """What lies between two offsets, in pieces.

        Raises:
            EntriesLost: entries are missing, and the query must not lose any.
        """
        pieces: list[StreamRange] = []
        for queue, stop in end.items():
            if queue in start and start[queue] != stop:
                pieces += self._pieces(queue, start[queue], stop)
        return pieces

    def _at(self, queue: str, place: Position, facts: StreamFacts) -> Position:
        count = self._count_now(queue, place, facts)
        # A query that chooses a place has read nothing up to it, and so nothing before it is lost.
        if count is None and place.is_before(facts.first_id):
            return Position()
        return Position(place.entry_id, count)

    def _advance(
        self,
        queue: str,
        start: Position,
        until_id: str,
        facts: StreamFacts,
        rows_max: int | None,
    ) -> Position:
        here = Position(start.entry_id, self._count_now(queue, start, facts))
        # A counter that went back is reported in a step of its own, and reading goes on from there.
        if went_back(start, here) or not start.is_before(facts.last_id):
            return here
        until_id = min(until_id, facts.last_id, key=id_parts)
        backlog = _backlog(here, facts)
        if until_id == facts.last_id and self._is_small(here, backlog, rows_max):
            walk = [Stretch(until_id, backlog, backlog)]
        else:
            walk = self._walk(queue, here, until_id, backlog, rows_max)
        if not walk:
            return here
        end = _behind(here, walk, facts)
        self._walks[queue] = (start, end, walk)
        return end

    def _is_small(self, start: Position, backlog: int, rows_max: int | None) -> bool:
        """Whether all that waits can go to one task, by the counter alone."""
        is_allowed = rows_max is None or backlog <= rows_max
        return start.count is not None and is_allowed and backlog <= self._channel.unmeasured_max

    def _pieces(self, queue: str, start: Position, end: Position) -> list[StreamRange]:
        if start.entry_id == end.entry_id:
            return self._empty_piece(queue, start, end)
        walk = self._remembered(queue, start, end)
        if went_back(start, end):
            self._refuse(queue, start, RESET, None)
            return _cut(queue, start, end, walk, 0, RESET)
        lost = lost_between(start, end, sum(stretch.entry_count for stretch in walk))
        unproven = self._unproven(queue, start) if lost is None else ""
        if lost or unproven:
            self._refuse(queue, start, unproven or TRIMMED, lost)
        return _cut(queue, start, end, walk, lost, unproven)

    def _empty_piece(self, queue: str, start: Position, end: Position) -> list[StreamRange]:
        """Nothing to read, but the counts differ: a loss, or a count that was not known before."""
        lost = lost_between(start, end, 0)
        if lost is None:
            return []
        # Nothing lost in number while the count differs: it went back.
        self._refuse(queue, start, TRIMMED if lost else RESET, lost or None)
        return _cut(queue, start, end, [], lost, "" if lost else RESET)

    def _refuse(self, queue: str, start: Position, label: str, lost: int | None) -> None:
        if self._options.fail_on_data_loss:
            raise entries_lost(queue, self._channel.place, start.entry_id, label, lost)

    def _unproven(self, queue: str, start: Position) -> str:
        """Without a count, a stream that begins behind us may have been longer."""
        first_id = self._facts([queue])[queue].first_id
        return TRIMMED if start.entry_id != NO_ENTRY and start.is_before(first_id) else ""

    def _count_now(self, queue: str, position: Position, facts: StreamFacts) -> int | None:
        """The count that the stream has at this place today."""
        if facts.added is None or not is_inside(position.entry_id, facts):
            return count_at_edge(position.entry_id, facts)
        key = self._channel.key(queue)
        if is_plausible(position, facts) and self._store.has(key, position.entry_id):
            return position.count
        walk = self._walk(queue, position, facts.last_id, facts.length)
        return facts.added - sum(stretch.entry_count for stretch in walk)

    def _remembered(self, queue: str, start: Position, end: Position) -> list[Stretch]:
        known = self._walks.pop(queue, None)
        if known and known[:2] == (start, end):
            return known[2]
        backlog = lost_between(start, end, 0)
        if backlog is None:
            backlog = self._facts([queue])[queue].length
        return self._walk(queue, start, end.entry_id, backlog)

    def _walk(
        self, queue: str, start: Position, until_id: str, backlog: int, rows_max: int | None = None
    ) -> list[Stretch]:
        key, field = self._channel.key(queue), self._channel.rows_field
        step = self._channel.step(backlog // (self._options.min_partitions * _PIECES_PER_TASK))
        walk: list[Stretch] = []
        after_id, rows_left = start.entry_id, rows_max or _UNLIMITED
        while rows_left > 0 and after_id != until_id:
            count = min(step, rows_left)
            stretch = self._store.measure(key, after_id, until_id, count, rows_left, field)
            # An entry is never cut in two: the first is taken whatever it holds.
            if stretch is None or (walk and stretch.row_count > rows_left):
                break
            walk.append(stretch)
            after_id, rows_left = stretch.last_id, rows_left - stretch.row_count
        return walk

    def _facts(self, queues: Sequence[str]) -> dict[str, StreamFacts]:
        facts = self._store.facts([self._channel.key(queue) for queue in queues])
        return dict(zip(queues, facts, strict=True))


def _backlog(start: Position, facts: StreamFacts) -> int:
    """How many entries wait at most; without a count, all that are there."""
    if start.count is None or facts.added is None:
        return facts.length
    return max(0, facts.added - start.count)


def _behind(start: Position, walk: list[Stretch], facts: StreamFacts) -> Position:
    last_id = walk[-1].last_id
    # The counter knows more than the walk: what was trimmed in between was not passed.
    if last_id == facts.last_id:
        return Position(last_id, facts.added)
    passed = sum(stretch.entry_count for stretch in walk)
    return Position(last_id, None if start.count is None else start.count + passed)


def _cut(
    queue: str, start: Position, end: Position, walk: list[Stretch], lost: int | None, loss: str
) -> list[StreamRange]:
    """A piece for each stretch; what was lost was before the first of them."""
    pieces: list[StreamRange] = []
    missing, after_id = lost, start.entry_id
    for stretch in walk or [Stretch(end.entry_id, 0, 0)]:
        pieces.append(
            StreamRange(
                queue=queue,
                after_id=after_id,
                until_id=stretch.last_id,
                entry_count=None if missing is None else stretch.entry_count + missing,
                found_count=stretch.entry_count,
                row_count=stretch.row_count,
                loss="" if pieces else loss,
            )
        )
        missing, after_id = None if missing is None else 0, stretch.last_id
    return pieces
