"""Finds one job: by what it left behind, by the delayed index, else by a bounded search.

What is known of a job that ended is put together from its outcome, its DLQ entry and the history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from chasquimq.errors import ServerRefused
from chasquimq.model.snapshot import JobState
from chasquimq.store.consumer.store import PARKING
from chasquimq.store.inspect.job_matcher import JobMatcher, joined
from chasquimq.store.inspect.pages import (
    PAGE_BYTES,
    DuePages,
    DueSearch,
    MemberPages,
    Pages,
    PageSize,
    StreamPages,
)
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.new_job import ulid_ms
from chasquimq.wire.outcome import COMPLETED
from chasquimq.wire.stream_entry import is_entry_id, read_text, read_uint

if TYPE_CHECKING:
    from chasquimq.store.inspect.pages import ReadStore
    from chasquimq.store.net.connection import Reply

ENTRIES_MAX = 100_000
SCANNED_BYTES_MAX = 8 * 1024 * 1024
_PAGE_MAX = 1_000
# The first page is small: it is not known yet what an entry weighs.
_FIRST_PAGE = 4
# About what an entry or a page takes on the wire beside its own bytes.
_OVERHEAD_BYTES = 48
_NO_LIMIT = 1 << 62
# How far the clock of a producer may be ahead before its jobs are searched for twice as long.
_AHEAD_MS = 1_000
# A busy queue has a page of the history every few milliseconds, and most callers can do without.
_HISTORY_BYTES_MAX = 1024 * 1024
_HISTORY_PAGE_BYTES = 256 * 1024
# An attempt is written soon after its end; an outage may hold it up.
_WRITTEN_WITHIN_MS = 60_000
# A user that may not read the history finds jobs all the same.
_UNREADABLE = frozenset({"NOPERM", "WRONGTYPE"})
Raw = TypeVar("Raw", bound=tuple[bytes, bytes | list[bytes]])


class FinderStore:
    """Searches one queue and moves nothing."""

    def __init__(self, keys: QueueKeys, reads: ReadStore, group: str = "default") -> None:
        self._keys = keys
        self._reads = reads
        self._group = group

    async def find(
        self,
        job_id: str,
        entries_max: int = ENTRIES_MAX,
        bytes_max: int | None = SCANNED_BYTES_MAX,
    ) -> JobState:
        """Where the job is now; a search reads about that many entries and bytes at most."""
        search = _Search(self._keys, self._reads, self._group, job_id, bytes_max)
        return await search.run(entries_max)


class _Glance(msgspec.Struct, frozen=True):
    """What one round trip says about a job, and how large a search would be."""

    outcome: bytes | None
    has_result: int
    due_ms: bytes | None
    member: bytes | None
    stream_len: int
    dlq_len: int
    delayed_len: int

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.stream_len, self.dlq_len, self.delayed_len


class _Search:
    """One search for one job."""

    def __init__(
        self, keys: QueueKeys, reads: ReadStore, group: str, job_id: str, bytes_max: int | None
    ) -> None:
        self._keys = keys
        self._reads = reads
        self._group = group
        self._job_id = job_id
        self._matcher = JobMatcher(job_id)
        self._bytes_left: float = _NO_LIMIT if bytes_max is None else bytes_max
        self._is_whole = True

    async def run(self, entries_max: int) -> JobState:
        glance = await self._glance()
        shares = fair_shares(glance.lengths, entries_max)
        self._is_whole = shares == glance.lengths
        found = await self._by_index(glance) or await self._by_search(*shares)
        if found is None:
            # It may have moved to where we had looked already.
            glance = await self._glance()
            found = await self._by_index(glance) or self._by_leftovers(glance)
        found = await self._with_history(found)
        is_whole = self._is_whole or found.state != "unknown"
        has_result = bool(glance.has_result)
        return replace(found, has_result=has_result, scanned_all=is_whole)

    async def _glance(self) -> _Glance:
        keys, job_id = self._keys, self._job_id
        replies = await self._reads.ask(
            ("GET", keys.outcome(job_id)),
            ("EXISTS", keys.result(job_id)),
            ("HGET", keys.dix, job_id),
            ("GET", keys.didx(job_id)),
            ("XLEN", keys.stream),
            ("XLEN", keys.dlq),
            ("ZCARD", keys.delayed),
        )
        return _Glance(*replies)

    async def _by_index(self, glance: _Glance) -> JobState | None:
        return (
            await self._by_outcome(glance)
            or await self._by_due_ms(read_uint(glance.due_ms))
            or await self._by_member(glance.member)
        )

    async def _by_outcome(self, glance: _Glance) -> JobState | None:
        outcome = self._matcher.outcome_in(glance.outcome)
        if outcome is None:
            return None
        if outcome.status == COMPLETED:
            return self._matcher.in_outcome(outcome)
        if not is_entry_id(outcome.dlq_id):
            return None
        # Not there, it was deleted, or sent back by the other implementation, which leaves outcomes.
        dlq_id = outcome.dlq_id
        (entries,) = await self._reads.ask(("XRANGE", self._keys.dlq, dlq_id, dlq_id))
        return self._matcher.in_dlq(entries[0]) if entries else None

    def _by_leftovers(self, glance: _Glance) -> JobState | None:
        """How it ended, where it lies nowhere any more."""
        outcome = self._matcher.outcome_in(glance.outcome)
        if outcome is not None:
            return self._matcher.in_outcome(outcome)
        if glance.has_result:
            return JobState(job_id=self._job_id, state="completed", source="result")
        return None

    async def _by_due_ms(self, due_ms: int | None) -> JobState | None:
        if due_ms is None:
            return None
        # The other implementation promotes without writing to the index, so it is only a hint.
        delayed = self._keys.delayed
        earlier, count = await self._reads.ask(
            ("ZCOUNT", delayed, "-inf", f"({due_ms}"), ("ZCOUNT", delayed, due_ms, due_ms)
        )
        if count > _PAGE_MAX:
            search = DueSearch(self._reads, delayed, self._job_id)
            found = await search.run(earlier, earlier + count)
            return None if found is None else self._matcher.in_delayed(found)
        pages = DuePages(self._reads, delayed, PageSize(), due_ms)
        # It is worth a look whatever a search may cost.
        limit, self._bytes_left = self._bytes_left, max(self._bytes_left, PAGE_BYTES)
        found = await self._seek([pages], self._matcher.in_delayed, ENTRIES_MAX, places_left=1)
        self._bytes_left = min(limit, self._bytes_left)
        return found

    async def _by_member(self, member: bytes | None) -> JobState | None:
        if member is None:
            return None
        (score,) = await self._reads.ask(("ZSCORE", self._keys.delayed, member))
        return None if score is None else self._matcher.in_delayed((member, score))

    async def _by_search(self, stream: int, dlq: int, delayed: int) -> JobState | None:
        # Jobs go from the stream to the other places, so the stream comes first. What it may not
        # use of the bytes is left for those of the others where something is.
        return (
            await self._in_stream(stream, 1 + (dlq > 0) + (delayed > 0))
            or await self._in_dlq(dlq, 1 + (delayed > 0))
            or await self._in_delayed(delayed)
        )

    async def _in_stream(self, share: int, places_left: int) -> JobState | None:
        # A page more, for what is promoted meanwhile.
        found = await self._seek(
            self._ranges(self._keys.stream, is_newest_first=False),
            self._matcher.in_stream,
            share and share + _PAGE_MAX,
            places_left=places_left,
        )
        return None if found is None else await self._ready_or_running(found)

    async def _in_dlq(self, share: int, places_left: int) -> JobState | None:
        ranges = self._ranges(self._keys.dlq, is_newest_first=True)
        return await self._seek(ranges, self._matcher.in_dlq, share, places_left=places_left)

    async def _in_delayed(self, share: int) -> JobState | None:
        # The other implementation's delayed jobs and retries are in no index.
        pages = MemberPages(self._reads, self._keys.delayed, self._page_size())
        return await self._seek([pages], self._matcher.in_delayed, share, places_left=1)

    async def _with_history(self, found: JobState | None) -> JobState:
        """What the history adds to the state of a job that ended; where nothing else is known of
        it, what it says of the last attempt.
        """
        if found is not None and found.state not in ("completed", "dead"):
            return found
        try:
            past = await self._in_history(found)
        except ServerRefused as error:
            if error.code not in _UNREADABLE:
                raise
            past = None
        if found is None:
            return past or JobState(job_id=self._job_id, state="unknown")
        return found if past is None else joined(found, past)

    async def _in_history(self, found: JobState | None) -> JobState | None:
        left = self._bytes_left
        if left < _NO_LIMIT / 2:
            left = min(left, _HISTORY_BYTES_MAX)
        if found is None:
            return await self._last_in_history(left)
        if found.finished_at_ms is None:
            past = await self._last_in_history(left)
        else:
            ended_ms = min(max(found.finished_at_ms, _AHEAD_MS), _NO_LIMIT)
            since, until = str(ended_ms - _AHEAD_MS), str(ended_ms + _WRITTEN_WITHIN_MS)
            pages = self._history(since, until)
            past = await self._seek_in_history(pages, left, found.state)
        return past if past is not None and past.state == found.state else None

    async def _last_in_history(self, bytes_left: float) -> JobState | None:
        """The last attempt: most jobs end soon after they were made, others perhaps just now."""
        made_ms = ulid_ms(self._job_id)
        oldest = "-" if made_ms is None else str(max(0, made_ms - _AHEAD_MS))
        newest_first = self._history(oldest, "+", is_newest_first=True)
        if made_ms is None:
            return await self._seek_in_history(newest_first, bytes_left)
        first = await self._seek_in_history(self._history(oldest, "+"), bytes_left / 2)
        if first is not None and first.state == "completed":
            return first
        return await self._seek_in_history(newest_first, bytes_left / 2) or first

    def _history(self, oldest: str, newest: str, *, is_newest_first: bool = False) -> StreamPages:
        size = PageSize(first=_FIRST_PAGE, bytes_max=_HISTORY_PAGE_BYTES)
        return StreamPages(
            self._reads, self._keys.history, size,
            oldest=oldest, newest=newest, is_newest_first=is_newest_first,
        )  # fmt: skip

    async def _seek_in_history(
        self, pages: StreamPages, bytes_left: float, state: str | None = None
    ) -> JobState | None:
        """The first attempt that says something of the job, in that many bytes at most."""
        while bytes_left > 0 and (page := await pages.next()) is not None:
            for found in filter(None, map(self._matcher.in_history, page)):
                if state in (None, found.state):
                    return found
            bytes_left -= sum(map(_bytes_of, page))
        return None

    def _ranges(self, key: str, *, is_newest_first: bool) -> list[StreamPages]:
        """All of a stream; where the id says when the job was made, what came after it first."""
        made_ms, pages = ulid_ms(self._job_id), partial(StreamPages, self._reads, key)
        if made_ms is None or made_ms <= _AHEAD_MS:
            return [pages(self._page_size(), is_newest_first=is_newest_first)]
        from_ms = made_ms - _AHEAD_MS
        later = pages(self._page_size(), oldest=str(from_ms))
        earlier = pages(self._page_size(), newest=str(from_ms - 1), is_newest_first=is_newest_first)
        return [later, earlier]

    async def _seek(
        self,
        ranges: Sequence[Pages[Raw]],
        recognise: Callable[[Raw], JobState | None],
        entries_left: int,
        *,
        places_left: int,
    ) -> JobState | None:
        """Look through one place; it may take its part of the bytes that are left."""
        reserved_bytes = self._bytes_left - self._bytes_left / places_left
        for pages in ranges:
            while entries_left > 0 and self._bytes_left > reserved_bytes:
                page = await pages.next()
                if page is None:
                    break
                found = next(filter(None, map(recognise, page)), None)
                if found is not None:
                    return found
                entries_left -= len(page)
                self._bytes_left -= _OVERHEAD_BYTES + sum(map(_bytes_of, page))
            else:
                # What was left for later, because of its bytes, may hold the job.
                self._is_whole &= entries_left <= 0
        return None

    def _page_size(self) -> PageSize:
        bytes_max = min(PAGE_BYTES, max(_OVERHEAD_BYTES, self._bytes_left / 8))
        return PageSize(first=_FIRST_PAGE, most=_PAGE_MAX, bytes_max=int(bytes_max))

    async def _ready_or_running(self, ready: JobState) -> JobState | None:
        stream, entry_id = self._keys.stream, ready.entry_id or ""
        try:
            entry, held, time = await self._reads.ask(
                ("XRANGE", stream, entry_id, entry_id),
                ("XPENDING", stream, self._group, entry_id, entry_id, 1),
                ("TIME",),
            )
        except ServerRefused as error:
            if error.code != "NOGROUP":
                raise
            return ready
        if not entry:
            return None
        return _held(ready, held[0], time) if held else ready


def fair_shares(lengths: Sequence[int], total: int) -> tuple[int, ...]:
    """Split a budget: short places are searched whole, long ones share what is left."""
    shares = [0] * len(lengths)
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    for done, at in enumerate(by_length):
        shares[at] = min(lengths[at], total // (len(lengths) - done))
        total -= shares[at]
    return tuple(shares)


def _held(ready: JobState, pending: Reply, time: Reply) -> JobState:
    _, worker, idle_ms, delivery_count = pending
    spent = ready.attempt or 0
    if worker == PARKING.encode():
        return replace(ready, attempt=spent + delivery_count)
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    return replace(
        ready,
        state="running",
        worker=read_text(worker),
        since_ms=now_ms - idle_ms,
        attempt=spent + max(0, delivery_count - 1),
    )


def _bytes_of(one: tuple[bytes, bytes | list[bytes]]) -> int:
    """What an entry or a member with its score takes on the wire, about."""
    key, rest = one
    size = sum(map(len, rest)) if isinstance(rest, list) else len(rest)
    return _OVERHEAD_BYTES + len(key) + size
