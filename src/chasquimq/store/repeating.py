"""The specs of repeatable jobs as their owner sees them: written, listed, removed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import DecodeError, ServerRefused
from chasquimq.store.due_spec import SPECS_PER_READ_MAX, Slot
from chasquimq.wire.repeat_spec import RepeatSpec, decode_spec
from chasquimq.wire.stored_repeat import BadRecord, StoredRepeat, decode_record, read_stored

if TYPE_CHECKING:
    from chasquimq.store.add_write import AddDeadline
    from chasquimq.store.connection import Part, Reply
    from chasquimq.store.producing import ProducerStore
    from chasquimq.store.reading import ReadStore
    from chasquimq.wire.new_repeat import NewRepeat

# How long a request's answer is remembered for a resend.
_REQUEST_TTL_S = 60
_RECORDS_PER_READ_MAX = 100


class Upserted(msgspec.Struct, frozen=True):
    """What an upsert came to."""

    was_written: bool
    next_fire_ms: int


class ListedSpec(msgspec.Struct, frozen=True):
    """A spec, the key it is armed under and when it fires next."""

    key: str
    spec: RepeatSpec
    next_fire_ms: int


class RepeatStore:
    """The specs of one queue, over its producer's connection."""

    def __init__(self, producer: ProducerStore, reads: ReadStore) -> None:
        self._producer = producer
        self._reads = reads
        self._keys = producer.keys

    async def upsert(self, new: NewRepeat, deadline: AddDeadline) -> Upserted:
        """Write a spec unless it is there already; the server's clock decides its first fire."""
        keys = self._request_keys(new.key)
        answer, at_ms = await self._upsert(keys, new, "", deadline)
        if answer == b"new":
            first_ms = new.first_fire_ms(int(at_ms))
            answer, at_ms = await self._upsert(keys, new, first_ms, deadline)
        return Upserted(answer == b"written", int(float(at_ms)))

    async def remove(self, key: str) -> bool:
        """Remove a spec, armed or put aside."""
        keys = self._request_keys(key)
        return await self._producer.request("remove_repeatable", keys, _REQUEST_TTL_S, key) == 1

    async def listed(self, limit: int) -> list[ListedSpec]:
        """The specs that fire next, soonest first; those that cannot be read are left out."""
        if limit < 1:
            return []
        (flat,) = await self._reads.ask(("ZRANGE", self._keys.repeat, 0, limit - 1, "WITHSCORES"))
        slots = [Slot(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        found: list[ListedSpec] = []
        for at in range(0, len(slots), SPECS_PER_READ_MAX):
            found += await self._read(slots[at : at + SPECS_PER_READ_MAX])
        return found

    async def stored(self, key: str) -> StoredRepeat | None:
        """One spec; None: there is none under that key.

        Raises:
            DecodeError: what is stored there can never fire.
        """
        spec_hash = self._keys.repeat_spec(key)
        (fields,) = await self._reads.ask(("HMGET", spec_hash, "spec", "retry", "fired"))
        return None if fields[0] is None else read_stored(*fields)

    async def bad(self, limit: int) -> list[tuple[str, BadRecord]]:
        """What was put aside, in no order."""
        found: dict[bytes, bytes] = {}
        cursor: Reply = b"0"
        while len(found) < limit:
            command = ("HSCAN", self._keys.repeat_bad, cursor, "COUNT", _RECORDS_PER_READ_MAX)
            ((cursor, flat),) = await self._reads.ask(command)
            found.update(zip(flat[::2], flat[1::2], strict=True))
            if cursor == b"0":
                break
        rows = list(found.items())[:limit]
        return [(key.decode(errors="backslashreplace"), decode_record(raw)) for key, raw in rows]

    async def _upsert(
        self, keys: list[str], new: NewRepeat, next_ms: int | str, deadline: AddDeadline
    ) -> tuple[bytes, bytes]:
        args = (_REQUEST_TTL_S, new.key, new.spec, new.retry, next_ms)
        return await self._producer.request("upsert_repeatable", keys, *args, deadline=deadline)

    def _request_keys(self, key: str) -> list[str]:
        keys = self._keys
        token = keys.token(secrets.token_hex(12))
        return [keys.repeat, keys.repeat_spec(key), keys.repeat_bad, token]

    async def _read(self, slots: Sequence[Slot]) -> list[ListedSpec]:
        commands = [("HGET", self._keys.repeat_spec(slot.key or ""), "spec") for slot in slots]
        try:
            replies = await self._reads.ask(*commands)
        except ServerRefused:
            # A key of the wrong type must not hide the others.
            replies = [await self._spec_or_none(command) for command in commands]
        found = [_listed(slot, spec) for slot, spec in zip(slots, replies, strict=True)]
        return [one for one in found if one is not None]

    async def _spec_or_none(self, command: tuple[Part, ...]) -> Reply:
        try:
            return (await self._reads.ask(command))[0]
        except ServerRefused:
            return None


def _listed(slot: Slot, spec: bytes | None) -> ListedSpec | None:
    if spec is None or slot.key is None:
        return None
    try:
        return ListedSpec(slot.key, decode_spec(spec), int(slot.at_ms))
    except (DecodeError, OverflowError):
        return None
