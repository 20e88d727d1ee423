"""The DLQ of one queue: looked at, sent back, or deleted, one bounded page at a time."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Self

import msgspec

from chasquimq.store.add_write import leftovers
from chasquimq.store.producing import ProducerStore
from chasquimq.store.reading import FIRST_PAGE_MAX, NamedPages, Pages, PageSize, StreamPages
from chasquimq.store.replaying import REQUEST_TTL_S, Edit, Move, Replay, Replayed, next_generation
from chasquimq.wire.stream_entry import DlqEntry, decode_dlq, encode_dlq, first_values

if TYPE_CHECKING:
    from chasquimq.store.reading import RawEntry, ReadStore


# How long an entry is known that was imported.
IMPORT_MEMORY_S = 24 * 3600
_IMPORTS_PER_CALL_MAX = 100
_IMPORT_BYTES_PER_CALL = 1024 * 1024


class Imported(int):
    """How many dead jobs were added; `known` were added before, or are still there."""

    known: int

    def __new__(cls, added: int = 0, *, known: int = 0) -> Self:
        self = super().__new__(cls, added)
        self.known = known
        return self


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

    async def import_all(self, entries: Sequence[DlqEntry], *, as_jobs: bool) -> Imported:
        """Add entries that came from a DLQ, as dead jobs or as jobs to run; each once.

        Raises:
            DecodeError: an envelope cannot be read, so it is no job; nothing was added.
        """
        count = len(entries)
        if as_jobs:
            entries = await self._all_not_there(entries)
        moves = [next_generation(entry) for entry in entries] if as_jobs else []
        added = start = size = 0
        for at, entry in enumerate([*entries, None]):
            more = len(entry.payload) if entry else 0
            is_full = at - start == _IMPORTS_PER_CALL_MAX or size + more > _IMPORT_BYTES_PER_CALL
            if at > start and (entry is None or is_full):
                some = entries[start:at]
                added += (
                    await self._add_jobs(some, moves[start:at])
                    if as_jobs
                    else await self._import_some(some)
                )
                start, size = at, 0
            size += more
        return Imported(added, known=count - added)

    async def _all_not_there(self, entries: Sequence[DlqEntry]) -> list[DlqEntry]:
        found: list[DlqEntry] = []
        for at in range(0, len(entries), _IMPORTS_PER_CALL_MAX):
            found += await self._not_there(entries[at : at + _IMPORTS_PER_CALL_MAX])
        return found

    async def _import_some(self, entries: Sequence[DlqEntry]) -> int:
        keys = [self._dlq, self._new_token(), *(self._marker(one) for one in entries)]
        args: list[bytes | str | int] = []
        for entry in entries:
            _, payload, *more = spelled(entry)
            args += (entry.entry_id, payload, len(more), *more)
        head = (REQUEST_TTL_S, IMPORT_MEMORY_S)
        return sum(await self._producer.request("import_dead", keys, *head, *args))

    async def _add_jobs(self, entries: Sequence[DlqEntry], moves: Sequence[Move]) -> int:
        """As a replay sends them, but by the script that knows what was added before."""
        of_queue = self._producer.keys
        markers = [self._marker(one) for one in entries]
        keys = [of_queue.stream, self._new_token(), *markers]
        keys += leftovers(of_queue, [move.job_id for move in moves])
        args: list[bytes | str] = []
        for entry, move in zip(entries, moves, strict=True):
            args += (move.envelope, move.name, _digest(entry))
        head = (0, REQUEST_TTL_S, IMPORT_MEMORY_S * 1000)
        marks = await self._producer.request("add", keys, *head, *args)
        return marks.count(1)

    async def _not_there(self, entries: Sequence[DlqEntry]) -> list[DlqEntry]:
        """Those that are not in the DLQ now: a job that is dead here must not run beside that."""
        found = await self._reads.ask(
            *(("XRANGE", self._dlq, one.entry_id, one.entry_id) for one in entries)
        )
        payloads = [first_values(rows[0][1]).get(b"d") if rows else None for rows in found]
        pairs = zip(entries, payloads, strict=True)
        return [one for one, payload in pairs if payload != one.payload]

    def _marker(self, entry: DlqEntry) -> str:
        """One for both ways of importing: what came back dead is not added as a job, too."""
        return self._producer.keys.token(f"import:{_digest(entry)}")

    def _new_token(self) -> str:
        return self._producer.keys.token(secrets.token_hex(12))

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
        keys = [self._dlq, self._new_token()]
        return await self._producer.request("purge", keys, REQUEST_TTL_S, *entry_ids)


def spelled(entry: DlqEntry) -> list[bytes]:
    """The fields of an entry as its writer spelled them."""
    return encode_dlq(
        entry.payload, entry.source_id, entry.reason, name=entry.name, detail=entry.detail,
        attempt=entry.attempt, failed_at_ms=entry.failed_at_ms, error=entry.error,
        fingerprint=entry.fingerprint, traceback=entry.traceback_text,
    )  # fmt: skip


def _digest(entry: DlqEntry) -> str:
    """What tells entries apart, whatever became of them."""
    hashed = blake2b(entry.entry_id.encode() + b"\0" + entry.payload, digest_size=16)
    return hashed.hexdigest()


def buried_ms(entry: DlqEntry) -> int:
    """When the server wrote the entry, by its own clock."""
    return int(entry.entry_id.partition("-")[0])
