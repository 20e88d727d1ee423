"""Holds what a queue has open: in each event loop a store for each durability, and a watch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import TypedDict
from uuid import uuid4

from msgspec.structs import replace

from chasquimq.errors import StoreError
from chasquimq.model.job_options import Durability, parse_durability
from chasquimq.queue.results import ResultWatch
from chasquimq.settings import (
    AbilitySettings,
    ConnectionSettings,
    ProducerSettings,
    check_add_timeout,
)
from chasquimq.store.event_reader import EndReader
from chasquimq.store.net.address import own_lookup
from chasquimq.store.net.connection import this_process
from chasquimq.store.net.errors import about
from chasquimq.store.net.per_loop import PerLoop
from chasquimq.store.net.reconnect import Deadline
from chasquimq.store.producer.store import ProducerStore
from chasquimq.store.producer.writes import AddMark
from chasquimq.store.results import ResultStore
from chasquimq.telemetry.tracing import Tracing
from chasquimq.wire.new_job import NewJob

# "server", "fsync" or "replica:n".
DurabilityLike = str | Durability


class QueueOptions(TypedDict, total=False):
    """Keywords of a Queue besides those in its signature: fields of `producer`."""

    max_stream_len: int | None
    max_delay_secs: int | None
    max_payload_bytes: int | None
    unique_for_ms: int | None
    unconfirmed_max_bytes: int | None
    resend: bool
    add_timeout_ms: int | None
    events_enabled: bool


class Connections:
    """Opens the stores of one queue when they are first used, and closes them for good."""

    def __init__(
        self,
        name: str,
        connection: ConnectionSettings,
        settings: ProducerSettings,
        *,
        abilities: AbilitySettings,
        durability: Durability,
        tracing: Tracing | None,
    ) -> None:
        self.is_closed = False
        # By process: a fork inherits what its parent has not used yet.
        self._first_ids: dict[int, _FirstId] = {}
        self._name = name
        self._connection = connection
        self._settings = settings
        self._abilities = abilities
        self._durability = durability
        self._tracing = tracing
        self._loops = PerLoop(lambda: LoopParts(own_lookup(self._connection), self._end))
        self._ended_dropped = self._ended_unproven = 0

    @property
    def producer_id(self) -> str:
        """Of the first store in this process; every other store has an id of its own."""
        return self._first_id.text

    @property
    def _first_id(self) -> _FirstId:
        return self._first_ids.setdefault(this_process.pid, _FirstId())

    def store(self, durability: DurabilityLike | None = None) -> ProducerStore:
        """The store of a durability in this loop; each has a connection of its own."""
        place = self._loops.latest
        # What `here` does, without the calls that each job would pay for.
        if durability is None and place is not None and place.loop.is_running():
            usual = place.value.usual_store
            if usual is not None and get_ident() == place.thread_id:
                return usual
        parts = self.parts()
        wanted = self._durability if durability is None else parse_durability(durability)
        store = parts.stores.get(wanted)
        if store is None:
            store = parts.stores[wanted] = self._new_store(wanted, parts.connection)
        if wanted == self._durability:
            parts.usual_store = store
        return store

    def result_watch(self) -> ResultWatch:
        """The watch over results in this loop."""
        parts = self.parts()
        if parts.watch is None:
            new_reader = partial(EndReader, self._name, parts.connection)
            parts.watch = ResultWatch(ResultStore(self._name, self.store().connection), new_reader)
        return parts.watch

    def parts(self) -> LoopParts:
        """What is open in this loop.

        Raises:
            StoreError: the queue is closed.
        """
        if self.is_closed:
            raise self._closed_error()
        return self._loops.here()

    def all_stores(self) -> list[ProducerStore]:
        """Those of all loops."""
        return [store for parts in self._loops.values() for store in list(parts.stores.values())]

    @property
    def events_dropped_count(self) -> int:
        living = sum(store.events_dropped_count for store in self.all_stores())
        return self._ended_dropped + living

    @property
    def events_unproven_count(self) -> int:
        living = sum(store.events_unproven_count for store in self.all_stores())
        return self._ended_unproven + living

    async def close(self) -> None:
        """Close the connections of all event loops; every further call is refused."""
        self.is_closed = True
        await self._loops.close()

    def _new_store(self, durability: Durability, connection: ConnectionSettings) -> ProducerStore:
        parts = (self._name, connection, self._settings, self._abilities, durability)
        producer_id = self._first_id.take()
        if self._tracing is None:
            return ProducerStore(*parts, producer_id=producer_id)
        return TracedStore(*parts, producer_id=producer_id, tracing=self._tracing)

    async def _end(self, parts: LoopParts) -> None:
        """Close what a loop has, because it has ended or the queue is closed; counts stay."""
        if parts.watch is not None:
            parts.watch.fail(self._closed_error())
        for store in parts.stores.values():
            await store.close()
        if parts.watch is not None:
            await parts.watch.close()
        # The writer of events learns of the loss in the next round of the loop.
        await asyncio.sleep(0)
        for store in parts.stores.values():
            self._ended_dropped += store.events_dropped_count
            self._ended_unproven += store.events_unproven_count

    def _closed_error(self) -> StoreError:
        return StoreError(f"queue {self._name!r} must be open and is closed; open a new Queue")


async def begin_add(
    store: ProducerStore, add_timeout_ms: int | None, job_ids: Sequence[str]
) -> Deadline:
    """Until when a call must be answered; waits for its turn where adds have to."""
    if add_timeout_ms is not None:
        check_add_timeout(add_timeout_ms)
    deadline = store.deadline(add_timeout_ms)
    if store.unconfirmed.is_full:
        try:
            await store.room(deadline)
        except StoreError as error:
            raise about(error, job_ids) from error.__cause__
    return deadline


class _FirstId:
    """A producer id for one store: a server remembers only so many adds of each id."""

    def __init__(self) -> None:
        self.text = str(uuid4())
        self._free = [self.text]

    def take(self) -> str | None:
        """The id, to the first who asks."""
        with suppress(IndexError):
            return self._free.pop()
        return None


class LoopParts:
    """What a queue has open in one event loop."""

    def __init__(
        self, connection: ConnectionSettings, end: Callable[[LoopParts], Awaitable[None]]
    ) -> None:
        self.connection = connection
        self.stores: dict[Durability, ProducerStore] = {}
        # Looked up once instead of for every job.
        self.usual_store: ProducerStore | None = None
        self.watch: ResultWatch | None = None
        self._end = end

    async def close(self) -> None:
        await self._end(self)


class TracedStore(ProducerStore):
    """Opens a span for each add, and lets the jobs carry its name.

    It takes the place of a plain store where tracing is on, so tracing costs nothing where not.
    """

    def __init__(
        self,
        queue: str,
        connection: ConnectionSettings,
        settings: ProducerSettings,
        abilities: AbilitySettings,
        durability: Durability,
        *,
        producer_id: str | None,
        tracing: Tracing,
    ) -> None:
        super().__init__(
            queue, connection, settings, abilities, durability, producer_id=producer_id
        )
        self._tracing = tracing

    async def add(self, job: NewJob, unique_ms: int, deadline: Deadline | None = None) -> AddMark:
        with self._tracing.adding(self.queue, job_id=job.job_id, name=job.name) as extras:
            return await super().add(_carrying(job, extras), unique_ms, deadline)

    async def add_many(
        self, jobs: Sequence[NewJob], unique_ms: int, deadline: Deadline | None = None
    ) -> list[AddMark]:
        with self._tracing.adding(self.queue, batch_count=len(jobs)) as extras:
            traced = [_carrying(job, extras) for job in jobs]
            return await super().add_many(traced, unique_ms, deadline)


def _carrying(job: NewJob, extras: dict[str, str]) -> NewJob:
    # No span, no extras: the bytes stay those of ChasquiMQ (Rust).
    return replace(job, extras={**(job.extras or {}), **extras}) if extras else job
