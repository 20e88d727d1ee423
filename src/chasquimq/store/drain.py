"""Removes jobs that wait, ready ones and delayed ones, page by page and beside workers."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import msgspec

from chasquimq.errors import DecodeError
from chasquimq.model.chunks import in_sized_chunks
from chasquimq.store.consumer.store import PARKING
from chasquimq.store.inspect.pages import (
    FIRST_PAGE_MAX,
    PageSize,
    ScorePages,
    StreamPages,
    delayed_job,
)
from chasquimq.store.net.script import REQUEST_TTL_S
from chasquimq.wire.envelope import decode_envelope
from chasquimq.wire.stream_entry import read_fields

if TYPE_CHECKING:
    from chasquimq.model.snapshot import DelayedJob
    from chasquimq.store.inspect.pages import RawEntry, RawMember, ReadStore
    from chasquimq.store.producer.store import ProducerStore

SAMPLE_MAX = 10
# Each looks at the pending list and deletes three keys; so many keep no other client waiting.
ENTRIES_PER_CALL_MAX = 100
_MEMBER_BYTES_PER_CALL_MAX = 1024 * 1024
_REMOVED = 1


class DelayedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which delayed jobs are meant; None asks for nothing. Due times are by the server's clock."""

    name: str | None = None
    id_prefix: str | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it asks for nothing, so that every delayed job is meant."""
        return self == DelayedQuery()

    def matches(self, job: DelayedJob) -> bool:
        if self.name is not None and job.name != self.name:
            return False
        return self.id_prefix is None or (job.job_id or "").startswith(self.id_prefix)

    @property
    def low(self) -> str:
        return "-inf" if self.due_after_ms is None else str(self.due_after_ms)

    @property
    def high(self) -> str:
        return "+inf" if self.due_before_ms is None else f"({self.due_before_ms}"


class Cancelled(int):
    """How many delayed jobs were cancelled.

    `matched` met the filters; those that were not cancelled became due meanwhile, or it was a dry
    run. `sample` are the first of them.
    """

    matched: int
    sample: list[DelayedJob]

    def __new__(
        cls, cancelled: int = 0, *, matched: int = 0, sample: Sequence[DelayedJob] = ()
    ) -> Self:
        self = super().__new__(cls, cancelled)
        self.matched = matched
        self.sample = list(sample)
        return self


class Drained(int):
    """How many jobs were removed: `ready` ones and `delayed` ones."""

    ready: int
    delayed: int

    def __new__(cls, ready: int = 0, delayed: int = 0) -> Self:
        self = super().__new__(cls, ready + delayed)
        self.ready = ready
        self.delayed = delayed
        return self


class DrainStore:
    """The jobs of one queue that wait, over the producer's connection."""

    def __init__(self, producer: ProducerStore, reads: ReadStore) -> None:
        self._producer = producer
        self._keys = producer.keys
        self._reads = reads

    async def drain(self, *, delayed: bool) -> Drained:
        """Remove what is ready now, and what waits for its time if that is asked for."""
        # Delayed ones first: what becomes due in between is ready then, and goes with the others.
        later = await self.cancel(DelayedQuery(), None, is_dry=False) if delayed else 0
        return Drained(await self._drain_ready(), int(later))

    async def cancel(self, query: DelayedQuery, limit: int | None, *, is_dry: bool) -> Cancelled:
        """Remove the delayed jobs that match, soonest first."""
        most = math.inf if limit is None else limit
        matched, cancelled, sample = 0, 0, list["DelayedJob"]()
        size = PageSize(FIRST_PAGE_MAX)
        pages = ScorePages(self._reads, self._keys.delayed, size, query.low, query.high)
        while matched < most and (page := await pages.next()) is not None:
            known = [(one, delayed_job(one)) for one in page]
            meant = [pair for pair in known if query.matches(pair[1])]
            meant = meant[: None if limit is None else limit - matched]
            matched += len(meant)
            sample += [job for _, job in meant[: SAMPLE_MAX - len(sample)]]
            if meant and not is_dry:
                cancelled += await self._cancel_members(meant)
        return Cancelled(cancelled, matched=matched, sample=sample)

    async def _cancel_members(self, meant: Sequence[tuple[RawMember, DelayedJob]]) -> int:
        done = 0
        for some, _ in in_sized_chunks(
            meant, ENTRIES_PER_CALL_MAX, _MEMBER_BYTES_PER_CALL_MAX, lambda pair: len(pair[0][0])
        ):
            keys = [self._keys.delayed, self._keys.dix, self._new_token()]
            args: list[bytes | str] = []
            for (member, _), job in some:
                keys += self._markers(job.job_id)
                args += (member, job.job_id or "")
            marks = await self._producer.request("cancel_members", keys, REQUEST_TTL_S, *args)
            done += marks.count(_REMOVED)
        return done

    async def _drain_ready(self) -> int:
        """Remove what no worker holds, up to the job that is the last one now."""
        (newest,) = await self._reads.ask(("XREVRANGE", self._keys.stream, "+", "-", "COUNT", 1))
        if not newest:
            return 0
        until = newest[0][0].decode()
        size = PageSize(FIRST_PAGE_MAX, ENTRIES_PER_CALL_MAX)
        pages = StreamPages(self._reads, self._keys.stream, size, newest=until)
        removed = 0
        while (page := await pages.next()) is not None:
            removed += await self._drain_entries(page) if page else 0
        return removed

    async def _drain_entries(self, page: Sequence[RawEntry]) -> int:
        keys = [self._keys.stream, self._new_token()]
        for _, fields in page:
            keys += self._markers(_job_id(fields))
        entry_ids = [entry_id for entry_id, _ in page]
        marks = await self._producer.request("drain", keys, REQUEST_TTL_S, PARKING, *entry_ids)
        return marks.count(_REMOVED)

    def _markers(self, job_id: str | None) -> tuple[str, str, str]:
        """What says that an id is taken; a job that cannot be read has taken none."""
        if job_id is None:
            nothing = self._keys.token("none")
            return nothing, nothing, nothing
        return self._keys.didx(job_id), self._keys.dlid(job_id), self._keys.uniq(job_id)

    def _new_token(self) -> str:
        return self._keys.token(secrets.token_hex(12))


def _job_id(fields: Sequence[bytes]) -> str | None:
    payload = read_fields(fields).payload
    try:
        return None if payload is None else decode_envelope(payload).id
    except DecodeError:
        return None
