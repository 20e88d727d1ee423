"""The specs of repeatable jobs as their owner sees them: written, listed, removed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.errors import DecodeError, StoreError
from chasquimq.store.connection import Reply, pack
from chasquimq.wire.repeat_spec import RepeatSpec, decode_spec
from chasquimq.wire.stored_repeat import BadRecord, StoredRepeat, decode_record, read_stored

if TYPE_CHECKING:
    from chasquimq.store.producing import ProducerStore
    from chasquimq.wire.new_repeat import NewRepeat

# How long a request's answer is remembered for a resend.
_REQUEST_TTL_S = 60
# A spec may carry a payload of a mebibyte, so this many at a time are enough.
_SPECS_PER_READ_MAX = 16
_RECORDS_PER_READ_MAX = 100


class Upserted(msgspec.Struct, frozen=True):
    """What an upsert came to."""

    was_written: bool
    next_fire_ms: int


class ListedSpec(msgspec.Struct, frozen=True):
    """A spec and when it fires next."""

    spec: RepeatSpec
    next_fire_ms: int


class RepeatStore:
    """The specs of one queue, over its producer's connection."""

    def __init__(self, producer: ProducerStore) -> None:
        self._producer = producer
        self._keys = producer.keys

    async def upsert(self, new: NewRepeat) -> Upserted:
        """Write a spec unless it is there already; the server's clock decides its first fire."""
        keys = self._request_keys(new.key)
        answer, at_ms = await self._upsert(keys, new, "")
        if answer == b"new":
            answer, at_ms = await self._upsert(keys, new, new.first_fire_ms(_number(at_ms)))
        return Upserted(answer == b"written", _number(at_ms))

    async def remove(self, key: str) -> bool:
        """Remove a spec, armed or put aside."""
        keys = self._request_keys(key)
        return await self._producer.request("remove_repeatable", keys, _REQUEST_TTL_S, key) == 1

    async def listed(self, limit: int) -> list[ListedSpec]:
        """The specs that fire next, soonest first; those that cannot be read are left out."""
        if limit < 1:
            return []
        flat = await self._producer.link.call(
            "ZRANGE", self._keys.repeat, 0, limit - 1, "WITHSCORES"
        )
        found: list[ListedSpec] = []
        for at in range(0, len(flat), 2 * _SPECS_PER_READ_MAX):
            found += await self._read_some(flat[at : at + 2 * _SPECS_PER_READ_MAX])
        return found

    async def stored(self, key: str) -> StoredRepeat | None:
        """One spec; None: there is none under that key.

        Raises:
            DecodeError: what is stored there can never fire.
        """
        fields = await self._producer.link.call(
            "HMGET", self._keys.repeat_spec(key), "spec", "retry", "fired"
        )
        return None if fields[0] is None else read_stored(*fields)

    async def bad(self, limit: int) -> list[tuple[str, BadRecord]]:
        """What was put aside, in no order."""
        found: dict[bytes, bytes] = {}
        cursor: Reply = b"0"
        while len(found) < limit:
            cursor, flat = await self._producer.link.call(
                "HSCAN", self._keys.repeat_bad, cursor, "COUNT", _RECORDS_PER_READ_MAX
            )
            found.update(zip(flat[::2], flat[1::2], strict=True))
            if cursor == b"0":
                break
        rows = list(found.items())[:limit]
        return [(key.decode(errors="backslashreplace"), decode_record(raw)) for key, raw in rows]

    async def _upsert(
        self, keys: list[str], new: NewRepeat, next_ms: int | str
    ) -> tuple[bytes, bytes]:
        args = (_REQUEST_TTL_S, new.key, new.spec, new.retry, next_ms)
        return await self._producer.request("upsert_repeatable", keys, *args)

    def _request_keys(self, key: str) -> list[str]:
        keys = self._keys
        token = keys.token(secrets.token_hex(12))
        return [keys.repeat, keys.repeat_spec(key), keys.repeat_bad, token]

    async def _read_some(self, flat: Sequence[bytes]) -> list[ListedSpec]:
        pairs = [
            (member.decode(), score)
            for member, score in zip(flat[::2], flat[1::2], strict=True)
            if _is_text(member)
        ]
        connection = await self._producer.link.connection()
        request = b"".join(pack(("HGET", self._keys.repeat_spec(key), "spec")) for key, _ in pairs)
        replies = await connection.send(request, len(pairs)) if pairs else []
        listed = (_listed(reply, score) for (_, score), reply in zip(pairs, replies, strict=True))
        return [one for one in listed if one is not None]


def _listed(reply: Reply, score: bytes) -> ListedSpec | None:
    if reply is None or isinstance(reply, StoreError):
        return None
    try:
        return ListedSpec(decode_spec(reply), _number(score))
    except (DecodeError, OverflowError):
        return None


def _number(score: bytes) -> int:
    return int(float(score))


def _is_text(member: bytes) -> bool:
    try:
        member.decode()
    except UnicodeDecodeError:
        return False
    return True
