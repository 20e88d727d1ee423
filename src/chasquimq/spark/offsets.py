"""Where a reader stands in the streams of its queues, and what was lost between two stands."""

from __future__ import annotations

import re

import msgspec

from chasquimq.errors import SettingsError
from chasquimq.store.inspect.ranges import NO_ENTRY, StreamFacts

_POSITION = re.compile(r"(?P<id>\d{1,20}-\d{1,20})(?:@(?P<count>\d{1,20}|\?))?")
_ID_PART_MAX = 2**64 - 1
_RULE = "an entry id such as 1700000000000-0, with @ and its number where that is known"


class Position(msgspec.Struct, frozen=True):
    """An entry id, and how many entries the stream ever had up to and with it.

    The count is what makes a loss visible: entries between two positions are the difference of
    their counts, whether they are still there or not. None: not counted.
    """

    entry_id: str = NO_ENTRY
    count: int | None = None

    def __str__(self) -> str:
        return f"{self.entry_id}@{'?' if self.count is None else self.count}"

    def is_before(self, entry_id: str) -> bool:
        """Whether there may be entries up to that id that this position has not passed."""
        return id_parts(self.entry_id) < id_parts(entry_id)


# Queue names and positions: the offsets of a query.
Offsets = dict[str, Position]


def to_json(offsets: Offsets) -> dict[str, str]:
    """The offsets as Spark keeps them in a checkpoint."""
    return {queue: str(position) for queue, position in sorted(offsets.items())}


def from_json(texts: dict[str, str]) -> Offsets:
    """Offsets of a checkpoint."""
    return {queue: parse_position("offset", text) for queue, text in texts.items()}


def parse_position(name: str, text: str) -> Position:
    """Read a position.

    Raises:
        SettingsError: the text is none; `name` says where it came from.
    """
    found = _POSITION.fullmatch(text)
    if found is None:
        raise SettingsError(name, text, _RULE)
    if max(id_parts(found["id"])) > _ID_PART_MAX:
        raise SettingsError(name, text, _RULE, hint=f"a part of an id is {_ID_PART_MAX} at most")
    count = found["count"]
    return Position(found["id"], int(count) if count and count != "?" else None)


def id_parts(entry_id: str) -> tuple[int, int]:
    """An entry id as numbers, in the order of the stream."""
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq or 0)


def first_position(facts: StreamFacts) -> Position:
    """Before the first entry that is there; what was trimmed before is no loss."""
    return Position(NO_ENTRY, None if facts.added is None else facts.added - facts.length)


def last_position(facts: StreamFacts) -> Position:
    """Behind the last entry."""
    return Position(facts.last_id, facts.added)


def is_inside(entry_id: str, facts: StreamFacts) -> bool:
    """Whether the id lies between the first and the last entry that are there."""
    return bool(facts.length) and (
        id_parts(facts.first_id) <= id_parts(entry_id) < id_parts(facts.last_id)
    )


def count_at_edge(entry_id: str, facts: StreamFacts) -> int | None:
    """The count of an id that is not inside, by the counter alone."""
    if facts.added is None:
        return None
    is_ahead = facts.length and id_parts(entry_id) < id_parts(facts.first_id)
    return facts.added - facts.length if is_ahead else facts.added


def is_plausible(position: Position, facts: StreamFacts) -> bool:
    """Whether an entry that is there may have this count, if all that ever left was trimmed."""
    if position.count is None or facts.added is None:
        return False
    return facts.added - facts.length < position.count <= facts.added


def lost_between(start: Position, end: Position, entry_count: int) -> int | None:
    """How many entries are missing where so many were found; None: not counted."""
    if start.count is None or end.count is None:
        return None
    return max(0, end.count - start.count - entry_count)


def went_back(start: Position, end: Position) -> bool:
    """Whether the counter is lower than before: the stream was deleted, made again or rolled back."""
    return start.count is not None and end.count is not None and end.count < start.count
