"""Sends moves through the door: several script calls in one write, and one answer a move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from chasquimq.errors import StoreError
from chasquimq.model.outcome import Door
from chasquimq.store import script

if TYPE_CHECKING:
    from chasquimq.store.connection import Part, Reply
    from chasquimq.store.link import Link

# A look-up takes a tenth of the time of the enum's own call.
_DOORS = {door.value: door for door in Door}


class Call(NamedTuple):
    """One script call, for so many moves."""

    keys: Sequence[str]
    args: Sequence[Part]
    move_count: int


class PartlyPassed(StoreError):
    """Some calls of a write met an error: their moves, without a door here, are to be sent again.

    The others are answered for good; sent again they would only be found gone.
    """

    def __init__(self, trouble: StoreError, doors: Sequence[Door | None]) -> None:
        super().__init__(str(trouble))
        self.doors = doors


async def pass_moves(link: Link, name: str, calls: Sequence[Call]) -> list[Door]:
    """How the door answered each move.

    Raises:
        PartlyPassed: some calls were answered, and some met an error.
        StoreError: none was answered.
    """
    connection = await link.connection()
    replies = await script.run_many(connection, name, [(call.keys, call.args) for call in calls])
    troubles = [reply for reply in replies if isinstance(reply, StoreError)]
    if not troubles:
        return [_DOORS[mark] for marks in replies for mark in marks]
    link.heed(troubles[0])
    if len(troubles) == len(calls):
        raise troubles[0]
    raise PartlyPassed(troubles[0], _known(calls, replies)) from troubles[0]


def _known(calls: Sequence[Call], replies: Sequence[Reply]) -> list[Door | None]:
    doors: list[Door | None] = []
    for call, reply in zip(calls, replies, strict=True):
        is_answered = not isinstance(reply, StoreError)
        doors += [_DOORS[mark] for mark in reply] if is_answered else [None] * call.move_count
    return doors
