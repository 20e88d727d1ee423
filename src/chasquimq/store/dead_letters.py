"""The DLQ of one queue: looked at, sent back, or deleted, one bounded page at a time."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from chasquimq.store.producing import ProducerStore
from chasquimq.store.reading import FIRST_PAGE_MAX, NamedPages, Pages, PageSize, StreamPages
from chasquimq.store.replaying import REQUEST_TTL_S, Edit, Replay, Replayed
from chasquimq.wire.stream_entry import DlqEntry, decode_dlq

if TYPE_CHECKING:
    from chasquimq.store.reading import RawEntry, ReadStore


class DlqQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are meant; None asks for nothing."""

    ids: Sequence[str] | None = None
    name: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    until_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it asks for nothing, so that every entry is meant."""
        return self == DlqQuery()

    def matches(self, entry: DlqEntry) -> bool:
        return (
            self.name in (None, entry.name)
            and self.reason in (None, entry.reason)
            and self.fingerprint in (None, entry.fingerprint)
            and (self.until_ms is None or buried_ms(entry) <= self.until_ms)
        )


class DlqWalk:
    """The matching entries, page by page."""

    def __init__(self, pages: Pages[RawEntry], query: DlqQuery) -> None:
        self._pages = pages
        self._query = query

    async def next(self) -> list[DlqEntry] | None:
        """What matches in the next page, perhaps nothing; None after the last."""
        page = await self._pages.next()
        if page is None:
            return None
        entries = [decode_dlq(entry_id, fields) for entry_id, fields in page]
        return [entry for entry in entries if self._query.matches(entry)]


class DeadLetterStore:
    """The DLQ of one queue, over the producer's link."""

    def __init__(self, producer: ProducerStore, reads: ReadStore) -> None:
        self._producer = producer
        self._reads = reads
        self._dlq = producer.keys.dlq

    async def peek(self, query: DlqQuery, limit: int, after: str | None) -> list[DlqEntry]:
        """The oldest matches behind `after`."""
        found: list[DlqEntry] = []
        walk = self._walk(query, limit, oldest=f"({after}" if after else "-")
        while len(found) < limit and (page := await walk.next()) is not None:
            found += page
        return found[:limit]

    async def replay(
        self,
        query: DlqQuery,
        limit: int,
        max_rate: float | None,
        *,
        is_dry: bool,
        edit: Edit | None = None,
    ) -> Replayed:
        """Send the oldest matches back to the stream; what cannot be read stays."""
        replay = Replay(self._producer, limit, max_rate, is_dry=is_dry, edit=edit)
        # What dies again meanwhile lies behind this id.
        walk = self._walk(query, limit, newest=await self._last_id())
        while not replay.is_full and (page := await walk.next()) is not None:
            await replay.take(page)
        await replay.flush()
        return replay.result()

    async def purge(self, query: DlqQuery, older_than_ms: int | None) -> int:
        """Delete every match that is there now and has been there for that long."""
        newest = await self._last_id()
        if older_than_ms is not None:
            until_ms = await self._server_ms() - older_than_ms
            query = msgspec.structs.replace(query, until_ms=until_ms)
            newest = str(max(0, until_ms))
        walk = self._walk(query, FIRST_PAGE_MAX, newest=newest)
        removed = 0
        while (page := await walk.next()) is not None:
            if page:
                removed += await self._purge_some([entry.entry_id for entry in page])
        return removed

    def _walk(
        self, query: DlqQuery, limit: int, *, oldest: str = "-", newest: str = "+"
    ) -> DlqWalk:
        size = PageSize(min(limit, FIRST_PAGE_MAX) if query.is_open else FIRST_PAGE_MAX)
        if query.ids is not None:
            return DlqWalk(NamedPages(self._reads, self._dlq, size, query.ids), query)
        pages = StreamPages(self._reads, self._dlq, size, oldest=oldest, newest=newest)
        return DlqWalk(pages, query)

    async def _last_id(self) -> str:
        (newest,) = await self._reads.ask(("XREVRANGE", self._dlq, "+", "-", "COUNT", 1))
        return newest[0][0].decode() if newest else "0-0"

    async def _server_ms(self) -> int:
        ((seconds, micros),) = await self._reads.ask(("TIME",))
        return int(seconds) * 1000 + int(micros) // 1000

    async def _purge_some(self, entry_ids: Sequence[str]) -> int:
        keys = [self._dlq, self._producer.keys.token(secrets.token_hex(12))]
        return await self._producer.request("purge", keys, REQUEST_TTL_S, *entry_ids)


def buried_ms(entry: DlqEntry) -> int:
    """When the server wrote the entry, by its own clock."""
    return int(entry.entry_id.partition("-")[0])
