"""Reads streams and sorted sets in small pages, and asks again until the server answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.retry import handler_wait
from chasquimq.model.snapshot import DelayedJob
from chasquimq.store.net.connection import pack
from chasquimq.store.net.errors import without_errors
from chasquimq.wire.envelope import decode_envelope, read_extras
from chasquimq.wire.stream_entry import head_of, split_member

if TYPE_CHECKING:
    from chasquimq.store.net.connection import Part, Reply
    from chasquimq.store.net.reconnect import ReconnectingConnection
    from chasquimq.wire.keys import QueueKeys

# An entry's id and its fields; a member and its score.
RawEntry = tuple[bytes, list[bytes]]
RawMember = tuple[bytes, bytes]
Raw_co = TypeVar("Raw_co", covariant=True)

PAGE_MAX = 500
FIRST_PAGE_MAX = 100
# A page of heavy entries would keep the server from everyone else.
PAGE_BYTES = 1024 * 1024
# A search by halves asks for so many members at most, one at a time.
_LOOKS_MAX = 2_000


class ReadStore:
    """Reading commands over a connection of its caller; reading twice harms nothing."""

    def __init__(self, connection: ReconnectingConnection) -> None:
        self._connection = connection

    async def ask(self, *commands: tuple[Part, ...]) -> list[Reply]:
        """The replies to commands that leave in one write; an error reply is raised."""
        return without_errors(
            await self._connection.ask(b"".join(map(pack, commands)), len(commands))
        )


class Pages(Protocol[Raw_co]):
    """What lies in one place, a page at a time."""

    async def next(self) -> Sequence[Raw_co] | None:
        """The next page, which may be empty; None after the last."""
        ...


class PageSize:
    """How many entries the next page may hold: many light ones, few heavy ones."""

    def __init__(
        self, first: int = FIRST_PAGE_MAX, most: int = PAGE_MAX, bytes_max: int = PAGE_BYTES
    ) -> None:
        self.count = max(1, min(first, most))
        self._most = most
        self._bytes_max = bytes_max

    def learn(self, page_bytes: int) -> None:
        """Let the next page weigh about `bytes_max`; it may hold twice as many at most."""
        fitting = self.count * self._bytes_max // max(1, page_bytes)
        self.count = max(1, min(fitting, self.count * 2, self._most))


class StreamPages:
    """A range of a stream, oldest first or newest first; both bounds as XRANGE takes them."""

    def __init__(
        self,
        reads: ReadStore,
        key: str,
        size: PageSize,
        *,
        oldest: str = "-",
        newest: str = "+",
        is_newest_first: bool = False,
    ) -> None:
        self._reads = reads
        self._key = key
        self._size = size
        self._command = "XREVRANGE" if is_newest_first else "XRANGE"
        self._from, self._to = (newest, oldest) if is_newest_first else (oldest, newest)
        self._is_done = False

    async def next(self) -> Sequence[RawEntry] | None:
        if self._is_done:
            return None
        count = self._size.count
        command = (self._command, self._key, self._from, self._to, "COUNT", count)
        (page,) = await self._reads.ask(command)
        self._is_done = len(page) < count
        if page:
            self._from = f"({page[-1][0].decode()}"
            self._size.learn(_entries_bytes(page))
        return page


class NamedPages:
    """Entries of a stream by their ids, in that order; ids that are not there are left out."""

    def __init__(
        self, reads: ReadStore, key: str, size: PageSize, entry_ids: Sequence[str]
    ) -> None:
        self._reads = reads
        self._key = key
        self._size = size
        self._entry_ids = entry_ids

    async def next(self) -> Sequence[RawEntry] | None:
        if not self._entry_ids:
            return None
        count = self._size.count
        ids, self._entry_ids = self._entry_ids[:count], self._entry_ids[count:]
        found = await self._reads.ask(*[("XRANGE", self._key, one, one) for one in ids])
        page: list[RawEntry] = [entry for entries in found for entry in entries]
        self._size.learn(_entries_bytes(page))
        return page


class DuePages:
    """The members of a sorted set that have one score."""

    def __init__(self, reads: ReadStore, key: str, size: PageSize, score: int) -> None:
        self._reads = reads
        self._range = (key, score, score, "WITHSCORES", "LIMIT")
        self._size = size
        self._offset: int | None = 0

    async def next(self) -> Sequence[RawMember] | None:
        if self._offset is None:
            return None
        count = self._size.count
        (flat,) = await self._reads.ask(("ZRANGEBYSCORE", *self._range, self._offset, count))
        page = _pairs(flat)
        self._offset = None if len(page) < count else self._offset + count
        self._size.learn(sum(map(len, flat)))
        return page


class DueSearch:
    """Finds a job among very many of one due time: members are sorted by name, then by id."""

    def __init__(self, reads: ReadStore, key: str, job_id: str) -> None:
        self._reads = reads
        self._key = key
        self._packed_id = msgspec.msgpack.encode(job_id)
        self._looks_left = _LOOKS_MAX

    async def run(self, low: int, high: int) -> RawMember | None:
        """Search the ranks of one score, name by name, each by halves."""
        while low < high and self._looks_left > 0:
            head = head_of(await self._member(low))
            if head is None:
                low += 1
                continue
            target = head + self._packed_id
            stop = await self._first(low + 1, high, lambda one, head=head: not one.startswith(head))
            rank = await self._first(low, stop, lambda one, target=target: one >= target)
            found = await self._look(rank)
            if rank < stop and found[0].startswith(target):
                return found
            low = stop
        return None

    async def _first(self, low: int, high: int, is_there: Callable[[bytes], bool]) -> int:
        while low < high:
            middle = (low + high) // 2
            if is_there(await self._member(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    async def _member(self, rank: int) -> bytes:
        return (await self._look(rank))[0]

    async def _look(self, rank: int) -> RawMember:
        self._looks_left -= 1
        (flat,) = await self._reads.ask(("ZRANGE", self._key, rank, rank, "WITHSCORES"))
        # What was there may have been promoted meanwhile.
        return (flat[0], flat[1]) if flat else (b"", b"")


class ScoreWalk:
    """Where a walk by score is: members of one score are counted, and known again.

    Pages overlap, so that members that leave in between do not let others be passed over.
    """

    def __init__(self, low: str) -> None:
        self.low: str = low
        self.must_go_back = False
        self._passed = 0
        self._asked_from = 0
        self._seen: set[int] = set()

    def offset(self, count: int) -> int:
        """How many members of the lowest score to leave out."""
        self._asked_from = 0 if self.must_go_back else max(0, self._passed - count // 2)
        self.must_go_back = False
        return self._asked_from

    def fresh(self, page: Sequence[RawMember]) -> list[RawMember]:
        """Those of a page that were not met before."""
        if self._asked_from and (not page or hash(page[0][0]) not in self._seen):
            # More left than the overlap holds: begin this score again.
            self.must_go_back, self._passed = True, 0
            return []
        found = [(member, score) for member, score in page if hash(member) not in self._seen]
        if page:
            self._move(page)
        return found

    def _move(self, page: Sequence[RawMember]) -> None:
        last = page[-1][1].decode()
        here = [hash(member) for member, score in page if score == page[-1][1]]
        if last == self.low:
            self._seen.update(here)
            self._passed = self._asked_from + len(page)
        else:
            self.low, self._seen, self._passed = last, set(here), len(here)


class ScorePages:
    """The members of a sorted set between two scores, the lowest first, each once.

    Others may come and go meanwhile; what the reader itself removes may go, too.
    """

    def __init__(self, reads: ReadStore, key: str, size: PageSize, low: str, high: str) -> None:
        self._reads = reads
        self._key = key
        self._size = size
        self._high = high
        self._walk = ScoreWalk(low)
        self._is_done = False

    async def next(self) -> Sequence[RawMember] | None:
        if self._is_done:
            return None
        # Pages overlap by half, so one of a single member would get nowhere.
        count = max(2, self._size.count)
        bounds = (self._walk.low, self._high, "WITHSCORES", "LIMIT", self._walk.offset(count))
        (flat,) = await self._reads.ask(("ZRANGEBYSCORE", self._key, *bounds, count))
        page = _pairs(flat)
        fresh = self._walk.fresh(page)
        self._is_done = len(page) < count and not self._walk.must_go_back
        self._size.learn(sum(map(len, flat)))
        return fresh


class MemberPages:
    """All members of a sorted set in no order; what stays there meanwhile is met at least once."""

    def __init__(self, reads: ReadStore, key: str, size: PageSize) -> None:
        self._reads = reads
        self._key = key
        self._size = size
        self._cursor: bytes | None = b"0"

    async def next(self) -> Sequence[RawMember] | None:
        if self._cursor is None:
            return None
        command = ("ZSCAN", self._key, self._cursor, "COUNT", self._size.count)
        ((cursor, flat),) = await self._reads.ask(command)
        self._cursor = None if cursor == b"0" else cursor
        self._size.learn(sum(map(len, flat)))
        return _pairs(flat)


def _entries_bytes(entries: Sequence[RawEntry]) -> int:
    return sum(len(part) for _, fields in entries for part in fields)


def _pairs(flat: Sequence[bytes]) -> list[RawMember]:
    return list(zip(flat[::2], flat[1::2], strict=True))


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
