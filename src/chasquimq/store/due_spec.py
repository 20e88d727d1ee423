"""Members of the repeat set whose time has come, understood or found to be bad."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import DecodeError, ServerRefused, StoreError
from chasquimq.model.schedule import INSTANT_MS_MAX, MissedFires, Pattern
from chasquimq.wire.stored_repeat import StoredRepeat, read_stored

if TYPE_CHECKING:
    from chasquimq.store.connection import Reply

# A spec may carry a payload of a mebibyte, so this many at a time are enough.
SPECS_PER_READ_MAX = 16


class Slot(msgspec.Struct, frozen=True):
    """A member of the repeat set and its score, as the server spells them."""

    member: bytes
    score: bytes

    @property
    def at_ms(self) -> float:
        return float(self.score)

    @property
    def key(self) -> str | None:
        """The spec key; None where the member is no text."""
        try:
            return self.member.decode()
        except UnicodeDecodeError:
            return None


class Agenda(msgspec.Struct, frozen=True):
    """Which specs have come by the server's clock, and when the next one will."""

    now_ms: int
    due: list[Slot]
    next_ms: float

    def pages(self) -> Iterator[list[Slot]]:
        """The due ones, as many at a time as may be read together."""
        for at in range(0, len(self.due), SPECS_PER_READ_MAX):
            yield self.due[at : at + SPECS_PER_READ_MAX]


class DueSpec(msgspec.Struct, frozen=True):
    """A spec whose window has come."""

    key: str
    score: bytes
    stored: StoredRepeat

    @property
    def due_ms(self) -> int:
        return int(float(self.score))

    @property
    def pattern(self) -> Pattern:
        return self.stored.pattern

    @property
    def policy(self) -> MissedFires:
        return self.stored.policy

    @property
    def end_before_ms(self) -> int | None:
        return self.stored.spec.end_before_ms

    @property
    def fires_left(self) -> int | None:
        """How many more jobs its limit allows; None: no limit."""
        limit = self.stored.spec.limit
        # The original takes a limit of 0, and means none by it.
        return max(0, limit - self.stored.fired) if limit else None


class BadSpec(msgspec.Struct, frozen=True):
    """A spec that can never fire, and why."""

    slot: Slot
    spec: bytes
    reason: str

    @property
    def shown_key(self) -> str:
        return self.slot.member.decode(errors="backslashreplace")


def understand(slot: Slot, reply: Reply) -> DueSpec | BadSpec:
    """What `HMGET spec retry fired` says of a slot; errors that are not its own are raised."""
    if isinstance(reply, StoreError):
        if isinstance(reply, ServerRefused) and reply.code == "WRONGTYPE":
            return BadSpec(slot, b"", "a spec must be stored in a hash, and its key is no hash")
        raise reply
    spec: bytes | None = reply[0]
    key = slot.key
    if key is None:
        return BadSpec(slot, b"", "a spec key must be UTF-8")
    if not 0 <= slot.at_ms <= INSTANT_MS_MAX:
        return BadSpec(slot, spec or b"", "a score must be an instant in milliseconds")
    try:
        return DueSpec(key, slot.score, read_stored(*reply))
    except DecodeError as error:
        return BadSpec(slot, spec or b"", str(error))
