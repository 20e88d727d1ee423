"""Lists delayed jobs, soonest first, and reads what one of them carries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chasquimq.errors import DecodeError
from chasquimq.model.snapshot import DelayedJob
from chasquimq.model.verdict import handler_wait
from chasquimq.store.reading import PageSize
from chasquimq.wire.codec import decode_envelope, read_extras
from chasquimq.wire.delayed_member import split_member

if TYPE_CHECKING:
    from chasquimq.store.reading import RawMember, ReadStore
    from chasquimq.wire.keys import QueueKeys

_PAGE_MAX = 100


class DelayedListing:
    """The delayed set of one queue; nothing moves."""

    def __init__(self, keys: QueueKeys, reads: ReadStore) -> None:
        self._key = keys.delayed
        self._reads = reads

    async def soonest(self, limit: int, bytes_max: float = math.inf) -> list[DelayedJob]:
        """The jobs that are due first; no page is begun beyond so many bytes."""
        size = PageSize(_PAGE_MAX, _PAGE_MAX)
        found: list[DelayedJob] = []
        while len(found) < limit and bytes_max > 0:
            count = min(size.count, limit - len(found))
            page = await self._page(len(found), count)
            found += map(delayed_job, page)
            page_bytes = sum(len(member) for member, _ in page)
            bytes_max -= page_bytes
            size.learn(page_bytes)
            if len(page) < count:
                break
        return found

    async def _page(self, start: int, count: int) -> Sequence[RawMember]:
        command = ("ZRANGE", self._key, start, start + count - 1, "WITHSCORES")
        (flat,) = await self._reads.ask(command)
        return list(zip(flat[::2], flat[1::2], strict=True))


def delayed_job(scored: RawMember) -> DelayedJob:
    """What a member of the delayed set and its score say."""
    member, score = scored
    due_ms = float(score)
    return DelayedJob(
        due_ms=int(due_ms) if math.isfinite(due_ms) else None,
        member_bytes=len(member),
        **_read(member),
    )


def _read(member: bytes) -> dict[str, Any]:
    try:
        name, raw = split_member(member)
    except DecodeError:
        return {"name": "", "job_id": None, "attempt": None}
    try:
        envelope = decode_envelope(raw)
    except DecodeError:
        return {"name": name, "job_id": None, "attempt": None}
    known = {"name": name, "job_id": envelope.id, "attempt": envelope.attempt}
    return known | handler_wait(name, read_extras(raw))
