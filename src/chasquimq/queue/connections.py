"""A store whose adds have a span each, and whose jobs carry its name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from threading import get_ident
from typing import Any, Self

from msgspec.structs import replace

from chasquimq.errors import StoreError
from chasquimq.model.job_options import Durability, optional_ms, optional_whole, parse_durability
from chasquimq.queue.result_watch import ResultWatch
from chasquimq.settings import (
    AbilitySettings,
    ConnectionSettings,
    CredentialProvider,
    ProducerSettings,
    check_add_timeout,
    given,
)
from chasquimq.store.inspect.queue import Counts, InspectorStore
from chasquimq.store.net.address import connection_settings, own_lookup
from chasquimq.store.net.errors import about
from chasquimq.store.net.per_loop import PerLoop
from chasquimq.store.producer.store import ProducerStore
from chasquimq.store.producer.writes import AddDeadline, AddMark
from chasquimq.telemetry.tracing import Tracing, tracing_of
from chasquimq.wire.keys import check_queue_name
from chasquimq.wire.new_job import JobEncoder, NewJob
from chasquimq.wire.payload import encode_payload


class TracedStore(ProducerStore):
    """Takes the place of a plain store where tracing is on, so that it costs nothing where not."""

    def __init__(
        self,
        queue: str,
        connection: ConnectionSettings,
        settings: ProducerSettings,
        abilities: AbilitySettings,
        durability: Durability,
        tracing: Tracing,
    ) -> None:
        super().__init__(queue, connection, settings, abilities, durability)
        self._tracing = tracing

    async def add(
        self, job: NewJob, unique_ms: int, deadline: AddDeadline | None = None
    ) -> AddMark:
        with self._tracing.adding(self.queue, job_id=job.job_id, name=job.name) as extras:
            return await super().add(_carrying(job, extras), unique_ms, deadline)

    async def add_many(
        self, jobs: Sequence[NewJob], unique_ms: int, deadline: AddDeadline | None = None
    ) -> list[AddMark]:
        with self._tracing.adding(self.queue, batch_count=len(jobs)) as extras:
            traced = [_carrying(job, extras) for job in jobs]
            return await super().add_many(traced, unique_ms, deadline)


def _carrying(job: NewJob, extras: dict[str, str]) -> NewJob:
    # No span, no extras: the bytes stay those of the original.
    return replace(job, extras={**(job.extras or {}), **extras}) if extras else job


# "server", "fsync" or "replica:n".
DurabilityLike = str | Durability


class LoopParts:
    """What a queue has in one event loop."""

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


class Opening:
    """Opens on first use, closes for good."""

    # How data becomes bytes.
    _encode: Callable[[Any], bytes] = staticmethod(encode_payload)
    _known_encoder: JobEncoder | None = None

    def __init__(
        self,
        name: str,
        *,
        redis_url: str | None = None,
        tls: bool = False,
        max_stream_len: int | None = None,
        max_delay_secs: int | None = None,
        credential_provider: CredentialProvider | None = None,
        insecure_tls: bool = False,
        max_payload_bytes: int | None = None,
        unique_for_ms: int | None = None,
        unconfirmed_max_bytes: int | None = None,
        resend: bool = True,
        add_timeout_ms: int | None = None,
        command_timeout_ms: int | None = None,
        abilities: AbilitySettings | None = None,
        durability: DurabilityLike | None = None,
        events_enabled: bool = False,
        tracing: bool | Tracing = False,
    ) -> None:
        self._name = check_queue_name(name)
        self._settings = given(
            ProducerSettings,
            max_stream_len=optional_whole("max_stream_len", max_stream_len),
            resend=resend,
            add_timeout_ms=optional_whole("add_timeout_ms", add_timeout_ms),
            max_delay_secs=optional_whole("max_delay_secs", max_delay_secs),
            max_payload_bytes=optional_whole("max_payload_bytes", max_payload_bytes),
            unique_for_ms=optional_ms("unique_for_ms", unique_for_ms),
            unconfirmed_max_bytes=optional_whole("unconfirmed_max_bytes", unconfirmed_max_bytes),
            events_enabled=events_enabled,
        )
        self._connection = connection_settings(
            redis_url,
            tls=tls,
            insecure_tls=insecure_tls,
            credential_provider=credential_provider,
            command_timeout_ms=optional_ms("command_timeout_ms", command_timeout_ms),
            queue=self._name,
        )
        self._abilities = abilities or AbilitySettings()
        self._durability = parse_durability(durability)
        self._tracing = tracing_of(tracing)
        self._loops = PerLoop(lambda: LoopParts(own_lookup(self._connection), self._end_parts))
        self._ended_dropped = self._ended_unproven = 0
        self._is_closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def unconfirmed_bytes(self) -> int:
        """How many bytes of encoded jobs the server has not confirmed yet."""
        return sum(store.unconfirmed.size for store in self._all_stores())

    @property
    def events_dropped_count(self) -> int:
        """How many `delayed` events of `events_enabled` are missing in the events stream."""
        living = sum(store.events_dropped_count for store in self._all_stores())
        return self._ended_dropped + living

    @property
    def events_unproven_count(self) -> int:
        """How many more may be missing, because the link broke before they were confirmed."""
        living = sum(store.events_unproven_count for store in self._all_stores())
        return self._ended_unproven + living

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def counts(self) -> Counts:
        """How many jobs are ready, running, delayed and dead."""
        return await InspectorStore(self._name, self._store().link).counts()

    async def close(self) -> None:
        """Close the connections of all event loops.

        A closed queue refuses every further call, and whoever waits for a result.
        """
        self._is_closed = True
        await self._loops.close()

    def _store(self, durability: DurabilityLike | None = None) -> ProducerStore:
        """The store of a durability class in this loop; each has a connection of its own."""
        place = self._loops.latest
        # What `here` does, without the calls that each job would pay for.
        if durability is None and place is not None and place.loop.is_running():
            usual = place.value.usual_store
            if usual is not None and get_ident() == place.thread_id:
                return usual
        parts = self._parts()
        wanted = self._durability if durability is None else parse_durability(durability)
        store = parts.stores.get(wanted)
        if store is None:
            store = parts.stores[wanted] = self._new_store(wanted, parts.connection)
        if wanted == self._durability:
            parts.usual_store = store
        return store

    async def _begin_add(
        self, store: ProducerStore, add_timeout_ms: int | None, job_ids: Sequence[str]
    ) -> AddDeadline:
        """Until when this call must be answered; waits for its turn where adds have to."""
        if add_timeout_ms is not None:
            check_add_timeout(add_timeout_ms)
        deadline = store.deadline(add_timeout_ms)
        if store.unconfirmed.is_full:
            try:
                await store.room(deadline)
            except StoreError as error:
                raise about(error, job_ids) from error.__cause__
        return deadline

    def _parts(self) -> LoopParts:
        if self._is_closed:
            raise self._closed_error()
        return self._loops.here()

    def _all_stores(self) -> list[ProducerStore]:
        return [store for parts in self._loops.values() for store in list(parts.stores.values())]

    async def _end_parts(self, parts: LoopParts) -> None:
        """A loop has ended, or the queue is closed: what is counted stays."""
        if parts.watch is not None:
            parts.watch.fail(self._closed_error())
        for store in parts.stores.values():
            await store.close()
        if parts.watch is not None:
            await parts.watch.close()
        # Who wrote events hears of the loss in the next round of the loop.
        await asyncio.sleep(0)
        for store in parts.stores.values():
            self._ended_dropped += store.events_dropped_count
            self._ended_unproven += store.events_unproven_count

    def _new_store(self, durability: Durability, connection: ConnectionSettings) -> ProducerStore:
        parts = (self._name, connection, self._settings, self._abilities, durability)
        if self._tracing is None:
            return ProducerStore(*parts)
        return TracedStore(*parts, self._tracing)

    def _closed_error(self) -> StoreError:
        return StoreError(f"queue {self._name!r} must be open and is closed; open a new Queue")

    def _encoder(self) -> JobEncoder:
        if self._known_encoder is None:
            settings = self._settings
            self._known_encoder = JobEncoder(
                settings.max_payload_bytes, settings.max_delay_secs, self._encode
            )
        return self._known_encoder
