"""Repeat specs as a scheduler sees them: due, fired, put aside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chasquimq.errors import StoreError
from chasquimq.store import script
from chasquimq.store.connection import Reply, pack
from chasquimq.store.due_spec import Agenda, BadSpec, DueSpec, Slot, understand
from chasquimq.store.fire_call import Call, FireSpeller
from chasquimq.store.upkeep import Lead, read_lead
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stored_repeat import BadRecord, encode_record

if TYPE_CHECKING:
    from chasquimq.model.schedule import Plan
    from chasquimq.store.connection import Part
    from chasquimq.store.link import Link


class FiringStore:
    """Reads and fires the specs of one queue, over somebody's link."""

    def __init__(self, queue: str, link: Link) -> None:
        self._keys = QueueKeys(queue)
        self._speller = FireSpeller(self._keys)
        self._link = link

    async def lead(self, holder: str, ttl_s: int) -> Lead:
        call: Call = ([self._keys.scheduler_lock, self._keys.repeat], [holder, ttl_s])
        return read_lead((await self._run("lead", [call]))[0])

    async def release_lock(self, holder: str) -> bool:
        call: Call = ([self._keys.scheduler_lock], [holder, self._keys.wake])
        return await self._run("release_lock", [call]) == [1]

    async def agenda(self, specs_max: int) -> Agenda:
        """The specs with the lowest scores and the server's time of day, in one round trip."""
        lowest = ("ZRANGE", self._keys.repeat, 0, specs_max - 1, "WITHSCORES")
        time, flat = self._raise_errors(await self._send([("TIME",), lowest]))
        now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
        slots = [Slot(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        due = [slot for slot in slots if slot.at_ms <= now_ms]
        next_ms = slots[len(due)].at_ms if len(due) < len(slots) else math.inf
        return Agenda(now_ms, due, next_ms)

    async def read(self, slots: Sequence[Slot]) -> tuple[list[DueSpec], list[BadSpec]]:
        """Understand the specs of a page; one that cannot be is no harm to the others."""
        hashes = [self._keys.repeat_spec(slot.key or "") for slot in slots]
        replies = await self._send([("HMGET", key, "spec", "retry", "fired") for key in hashes])
        found = [understand(slot, reply) for slot, reply in zip(slots, replies, strict=True)]
        due = [one for one in found if isinstance(one, DueSpec)]
        return due, [one for one in found if isinstance(one, BadSpec)]

    async def fire(self, plans: Sequence[tuple[DueSpec, Plan]], now_ms: int) -> int:
        """Turn planned windows into jobs, each due time into one; the answer is how many."""
        fired = 0
        for calls in self._speller.writes(plans, now_ms):
            fired += sum(count for _, count in await self._run("fire", calls))
        return fired

    async def quarantine(self, bad: BadSpec, now_ms: int) -> bool:
        """Put a bad spec aside with its bytes; False: it changed meanwhile."""
        keys = self._keys
        record = encode_record(BadRecord(bad.reason, bad.spec, now_ms))
        call: Call = (
            [keys.repeat, keys.repeat_spec(bad.slot.key or ""), keys.repeat_bad],
            [bad.slot.member, bad.slot.score, bad.spec, record],
        )
        return await self._run("quarantine_spec", [call]) == [1]

    async def _send(self, commands: Sequence[tuple[Part, ...]]) -> list[Reply]:
        connection = await self._link.connection()
        return await connection.send(b"".join(map(pack, commands)), len(commands))

    async def _run(self, name: str, calls: Sequence[Call]) -> list[Reply]:
        connection = await self._link.connection()
        return self._raise_errors(await script.run_many(connection, name, calls))

    def _raise_errors(self, replies: list[Reply]) -> list[Reply]:
        for reply in replies:
            if isinstance(reply, StoreError):
                self._link.heed(reply)
                raise reply
        return replies
