"""Reads, replays, purges and imports dead jobs, in chunks and at a limited rate."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

import msgspec

from chasquimq.errors import DecodeError, EditRefused
from chasquimq.model.chunks import in_chunks, in_sized_chunks
from chasquimq.model.job_options import U32_MAX
from chasquimq.model.json_value import ToDict
from chasquimq.model.retry import UNKNOWN_SINCE, UNKNOWN_UNTIL
from chasquimq.store.inspect.pages import FIRST_PAGE_MAX, NamedPages, Pages, PageSize, StreamPages
from chasquimq.store.net.script import REQUEST_TTL_S
from chasquimq.store.producer.store import ProducerStore
from chasquimq.store.producer.writes import leftovers
from chasquimq.wire.envelope import changed_extras, encode_envelope, raw_extras, split_envelope
from chasquimq.wire.stream_entry import DlqEntry, decode_dlq, encode_dlq, first_values

if TYPE_CHECKING:
    from chasquimq.store.inspect.pages import RawEntry, ReadStore

# What a payload becomes before its job is sent back.
Edit = Callable[[bytes], bytes]

_ENTRIES_PER_CALL_MAX = 100
_BYTES_PER_CALL_MAX = 1024 * 1024
# A replay with a rate leaves in bursts of at most this much of its rate.
_BURST_S = 0.1


class Replayed(int, ToDict):
    """How many jobs were replayed, and what else a replay met on its way.

    `matched` entries met the filters; `skipped` of them stay in the DLQ: they cannot be decoded,
    or are among the `refused`, which the edit did not take. `ids` are the DLQ ids that were replayed, or would have been in a
    dry run, and `job_ids` those of the jobs.
    """

    skipped: int
    refused: int
    matched: int
    ids: list[str]
    job_ids: list[str]

    def __new__(
        cls,
        replayed: int = 0,
        *,
        skipped: int = 0,
        refused: int = 0,
        matched: int = 0,
        ids: Sequence[str] = (),
        job_ids: Sequence[str] = (),
    ) -> Self:
        self = super().__new__(cls, replayed)
        self.skipped = skipped
        self.refused = refused
        self.matched = matched
        self.ids = list(ids)
        self.job_ids = list(job_ids)
        return self

    @property
    def replayed(self) -> int:
        return int(self)

    def to_dict(self) -> dict[str, Any]:
        """The figures and the ids; as a number it is only how many were replayed."""
        return {"replayed": int(self), **vars(self)}


class Replay:
    """Gathers what is to be replayed and sends it in chunks, each under a token of its own."""

    def __init__(
        self,
        producer: ProducerStore,
        limit: int,
        max_rate: float | None,
        *,
        is_dry: bool,
        edit: Edit | None = None,
    ) -> None:
        self._producer = producer
        self._limit = limit
        self._edit = edit
        self._limiter = RateLimiter(max_rate)
        self._is_dry = is_dry
        self._moves: list[Move] = []
        self._moves_bytes = 0
        self._ids: list[str] = []
        self._job_ids: list[str] = []
        self._matched = self._skipped = self._refused = 0

    @property
    def is_full(self) -> bool:
        return len(self._ids) >= self._limit

    async def take(self, entries: Sequence[DlqEntry]) -> None:
        """Replay entries until the limit is reached; the last chunk waits for more or a flush."""
        for entry in entries:
            if self.is_full:
                return
            self._matched += 1
            move = self._move(entry)
            if move is None:
                self._skipped += 1
            else:
                await self._add(move)

    def _move(self, entry: DlqEntry) -> Move | None:
        try:
            return next_generation(entry, self._edit)
        except DecodeError:
            return None
        except EditRefused:
            self._refused += 1
            return None

    async def flush(self) -> None:
        """Send what has been gathered."""
        moves, self._moves, self._moves_bytes = self._moves, [], 0
        if moves and not self._is_dry:
            await self._limiter.wait(len(moves))
            marks = await self._send(moves)
            moves = [move for move, mark in zip(moves, marks, strict=True) if mark == 1]
        self._ids += [move.dlq_id for move in moves]
        self._job_ids += [move.job_id for move in moves]

    def result(self) -> Replayed:
        count = 0 if self._is_dry else len(self._ids)
        return Replayed(
            count, skipped=self._skipped, refused=self._refused, matched=self._matched, ids=self._ids,
            job_ids=self._job_ids,
        )  # fmt: skip

    async def _add(self, move: Move) -> None:
        size = len(move.envelope)
        if self._moves and self._moves_bytes + size > _BYTES_PER_CALL_MAX:
            await self.flush()
        self._moves.append(move)
        self._moves_bytes += size
        if len(self._moves) >= min(self._limiter.burst_max, self._limit - len(self._ids)):
            await self.flush()

    async def _send(self, moves: Sequence[Move]) -> list[int]:
        keys = self._producer.keys
        outcomes = [keys.outcome(move.job_id) for move in moves]
        token = keys.token(secrets.token_hex(12))
        args = [part for move in moves for part in (move.dlq_id, move.envelope, move.name)]
        return await self._producer.request(
            "replay", [keys.dlq, keys.stream, token, *outcomes], REQUEST_TTL_S, *args
        )


class RateLimiter:
    """Spreads jobs over time; None does not hold anything back."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._next_s = 0.0

    @property
    def burst_max(self) -> int:
        if self._per_second is None:
            return _ENTRIES_PER_CALL_MAX
        return min(_ENTRIES_PER_CALL_MAX, max(1, int(self._per_second * _BURST_S)))

    async def wait(self, count: int) -> None:
        """Return when that many may leave; time that was not used is not made up for."""
        if self._per_second is None:
            return
        now_s = asyncio.get_running_loop().time()
        starts_s = max(now_s, self._next_s)
        self._next_s = starts_s + count / self._per_second
        await asyncio.sleep(starts_s - now_s)


class Move(msgspec.Struct, frozen=True):
    """What is written for a dead job that goes back to the stream."""

    dlq_id: str
    job_id: str
    envelope: bytes
    name: str


def next_generation(entry: DlqEntry, edit: Edit | None = None) -> Move:
    """A dead job as it is sent back.

    Raises:
        DecodeError: its envelope cannot be read.
    """
    dead, extras = split_envelope(entry.payload)
    payload = dead.payload if edit is None else edit(dead.payload)
    envelope = encode_envelope(dead.id, payload, dead.created_at_ms, 0, dead.retry)
    carried = raw_extras(entry.payload) if extras else b""
    envelope += changed_extras(carried, _changes(extras or {}))
    return Move(entry.entry_id, dead.id, envelope, entry.name)


def _changes(extras: dict[str, Any]) -> dict[str, int | None]:
    generation = max(0, extras.get("generation", 0)) + 1
    # A new generation has all its time to meet a worker that knows its name.
    return {
        UNKNOWN_SINCE: None,
        UNKNOWN_UNTIL: None,
        "generation": min(generation, U32_MAX),
    }


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
    """The DLQ of one queue, over the producer's connection."""

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
        added = at = 0
        for some, _ in in_sized_chunks(
            entries, _IMPORTS_PER_CALL_MAX, _IMPORT_BYTES_PER_CALL, lambda one: len(one.payload)
        ):
            if as_jobs:
                added += await self._add_jobs(some, moves[at : at + len(some)])
            else:
                added += await self._import_some(some)
            at += len(some)
        return Imported(added, known=count - added)

    async def count_known(self, entries: Sequence[DlqEntry]) -> int:
        """How many an import would not add."""
        fresh = 0
        for some in in_chunks(await self._all_not_there(entries), _IMPORTS_PER_CALL_MAX):
            markers = {self._marker(one) for one in some}
            fresh += (await self._reads.ask(*(("EXISTS", one) for one in markers))).count(0)
        return len(entries) - fresh

    async def _all_not_there(self, entries: Sequence[DlqEntry]) -> list[DlqEntry]:
        found: list[DlqEntry] = []
        for some in in_chunks(entries, _IMPORTS_PER_CALL_MAX):
            found += await self._not_there(some)
        return found

    async def _import_some(self, entries: Sequence[DlqEntry]) -> int:
        keys = [self._dlq, self._new_token(), *(self._marker(one) for one in entries)]
        args: list[bytes | str | int] = []
        for entry in entries:
            _, payload, *more = encoded_fields(entry)
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


def encoded_fields(entry: DlqEntry) -> list[bytes]:
    """The fields of an entry as its writer encoded them."""
    return encode_dlq(
        entry.payload, entry.source_id, entry.reason, name=entry.name, detail=entry.detail,
        attempt=entry.attempt, failed_at_ms=entry.failed_at_ms, error=entry.error,
        fingerprint=entry.fingerprint, traceback=entry.traceback_text,
    )  # fmt: skip


def _digest(entry: DlqEntry) -> str:
    """What differs from entry to entry, whatever became of them."""
    hashed = blake2b(entry.entry_id.encode() + b"\0" + entry.payload, digest_size=16)
    return hashed.hexdigest()


def buried_ms(entry: DlqEntry) -> int:
    """When the server wrote the entry, by its own clock."""
    return int(entry.entry_id.partition("-")[0])
