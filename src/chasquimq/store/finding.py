"""Finds one job: by what it left behind, by the delayed index, else by a bounded search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from chasquimq.errors import ServerRefused
from chasquimq.model.job_state import JobState
from chasquimq.store.consuming import PARKING
from chasquimq.store.reading import DuePages, MemberPages, Pages, PageSize, StreamPages
from chasquimq.store.sighting import Sighting
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import read_text, read_uint

if TYPE_CHECKING:
    from chasquimq.store.connection import Reply
    from chasquimq.store.reading import ReadStore

ENTRIES_MAX = 100_000
_PAGE_MAX = 1_000
Raw = TypeVar("Raw")


class FinderStore:
    """Searches one queue and moves nothing."""

    def __init__(self, keys: QueueKeys, reads: ReadStore, group: str = "default") -> None:
        self._keys = keys
        self._reads = reads
        self._group = group

    async def find(self, job_id: str, entries_max: int = ENTRIES_MAX) -> JobState:
        """Where the job is now; a search looks at about that many entries at most."""
        return await _Search(self._keys, self._reads, self._group, job_id).run(entries_max)


class _Glance(msgspec.Struct, frozen=True):
    """What one round trip tells about a job, and how large a search would be."""

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

    def __init__(self, keys: QueueKeys, reads: ReadStore, group: str, job_id: str) -> None:
        self._keys = keys
        self._reads = reads
        self._group = group
        self._job_id = job_id
        self._sighting = Sighting(job_id)

    async def run(self, entries_max: int) -> JobState:
        glance = await self._glance()
        shares = fair_shares(glance.lengths, entries_max)
        found = await self._by_index(glance) or await self._by_search(*shares)
        if found is not None:
            return found
        # It may have moved to where we had looked already.
        last = await self._glance()
        found = await self._by_index(last)
        if found is not None:
            return found
        if last.has_result:
            return JobState(job_id=self._job_id, state="completed")
        has_seen_all = shares == glance.lengths
        return JobState(job_id=self._job_id, state="unknown", scanned_all=has_seen_all)

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
            self._sighting.in_outcome(glance.outcome)
            or await self._by_due_ms(read_uint(glance.due_ms))
            or await self._by_member(glance.member)
        )

    async def _by_due_ms(self, due_ms: int | None) -> JobState | None:
        if due_ms is None:
            return None
        # The other implementation promotes without telling the index, so it is only a hint.
        pages = DuePages(self._reads, self._keys.delayed, _page_size(), due_ms)
        return await _seek(pages, self._sighting.in_delayed, ENTRIES_MAX)

    async def _by_member(self, member: bytes | None) -> JobState | None:
        if member is None:
            return None
        (score,) = await self._reads.ask(("ZSCORE", self._keys.delayed, member))
        return None if score is None else self._sighting.in_delayed((member, score))

    async def _by_search(self, stream: int, dlq: int, delayed: int) -> JobState | None:
        # Jobs go from the stream to the other places, so the stream comes first.
        return (
            await self._in_stream(stream)
            or await self._in_dlq(dlq)
            or await self._in_delayed(delayed)
        )

    async def _in_stream(self, share: int) -> JobState | None:
        pages = StreamPages(self._reads, self._keys.stream, _page_size())
        # A page more, for what is promoted meanwhile.
        found = await _seek(pages, self._sighting.in_stream, share + _PAGE_MAX)
        return None if found is None else await self._ready_or_running(found)

    async def _in_dlq(self, share: int) -> JobState | None:
        pages = StreamPages(self._reads, self._keys.dlq, _page_size(), is_newest_first=True)
        return await _seek(pages, self._sighting.in_dlq, share)

    async def _in_delayed(self, share: int) -> JobState | None:
        # The other implementation's delayed jobs and retries are in no index.
        pages = MemberPages(self._reads, self._keys.delayed, _page_size())
        return await _seek(pages, self._sighting.in_delayed, share)

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


async def _seek(
    pages: Pages[Raw], recognise: Callable[[Raw], JobState | None], share: int
) -> JobState | None:
    while share > 0 and (page := await pages.next()) is not None:
        for one in page:
            found = recognise(one)
            if found is not None:
                return found
        share -= len(page)
    return None


def _held(ready: JobState, pending: Reply, time: Reply) -> JobState:
    _, worker, idle_ms, delivery_count = pending
    spent = ready.attempt or 0
    if worker == PARKING.encode():
        return msgspec.structs.replace(ready, attempt=spent + delivery_count)
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    return msgspec.structs.replace(
        ready,
        state="running",
        worker=read_text(worker),
        since_ms=now_ms - idle_ms,
        attempt=spent + max(0, delivery_count - 1),
    )


def _page_size() -> PageSize:
    return PageSize(most=_PAGE_MAX)
