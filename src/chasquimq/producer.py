"""Producer: the adding side of a queue for callers who encode their own payloads."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from chasquimq.errors import LimitExceeded, SettingsError
from chasquimq.model.durability import Durability
from chasquimq.model.native_options import job_arguments, real_list, repeat_arguments
from chasquimq.queue import Queue
from chasquimq.queue.dead_letters import DeadLetter
from chasquimq.repeat import RepeatableMeta
from chasquimq.settings import ConnectionSettings, CredentialProvider, at_least
from chasquimq.store.producing import ProducerStore
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.names import check_job_ids
from chasquimq.wire.new_job import raw_payload

_EPOCH = datetime.fromtimestamp(0, UTC)


class Producer:
    """Adds payloads that are bytes already, and returns job ids.

    `opts` are dicts with `id`, `name` and `retry` (`max_attempts`, `backoff`). It connects when
    first used, over one connection however large `pool_size` is. Most programs want a `Queue`.
    """

    def __init__(
        self,
        redis_url: str | None,
        queue_name: str,
        *,
        pool_size: int | None = None,
        max_stream_len: int | None = None,
        max_delay_secs: int | None = None,
        credential_provider: CredentialProvider | None = None,
        add_timeout_ms: int | None = None,
    ) -> None:
        if pool_size is not None:
            at_least("pool_size", pool_size, 1)
        self._queue = _BytesQueue(
            queue_name,
            redis_url=redis_url,
            max_stream_len=max_stream_len,
            max_delay_secs=max_delay_secs,
            credential_provider=credential_provider,
            add_timeout_ms=add_timeout_ms,
        )
        self._keys = QueueKeys(queue_name)

    def stream_key(self) -> str:
        return self._keys.stream

    def delayed_key(self) -> str:
        return self._keys.delayed

    def dlq_key(self) -> str:
        return self._keys.dlq

    def producer_id(self) -> str:
        """Under which id the server remembers this producer's adds.

        In a second event loop it has another one, because the server remembers so many adds of
        an id, and those of two connections could be more.
        """
        return self._queue.producer_id

    async def add(self, payload: bytes) -> str:
        """Add a job that is ready now."""
        return await self.add_with_options(payload, {})

    async def add_with_options(self, payload: bytes, opts: dict[str, Any]) -> str:
        """The same with an id, a name or a retry policy of its own."""
        return (await self._queue.add(data=payload, **job_arguments(opts))).id

    async def add_in(self, delay_ms: int, payload: bytes) -> str:
        """Add a job that is due so many milliseconds from now."""
        return await self.add_in_with_options(delay_ms, payload, {})

    async def add_in_with_options(self, delay_ms: int, payload: bytes, opts: dict[str, Any]) -> str:
        wait_ms = operator.index(delay_ms)
        job = await self._queue.add(data=payload, delay_ms=wait_ms, **job_arguments(opts))
        return job.id

    async def add_at(self, when_ms: int, payload: bytes) -> str:
        """Add a job that is due at an instant, in milliseconds since 1970; a past one is ready."""
        return await self.add_at_with_options(when_ms, payload, {})

    async def add_at_with_options(self, when_ms: int, payload: bytes, opts: dict[str, Any]) -> str:
        instant = _instant(when_ms)
        return (await self._queue.add(data=payload, delay_ms=instant, **job_arguments(opts))).id

    async def add_bulk(self, payloads: list[bytes]) -> list[str]:
        """Add many jobs in as few writes as possible; the ids come in their order."""
        return await self._add_all(_payloads(payloads))

    async def add_bulk_with_options(self, payloads: list[bytes], opts: dict[str, Any]) -> list[str]:
        """The same, each with these options; an id is for one payload only."""
        arguments = job_arguments(opts)
        specs = _payloads(payloads)
        if arguments["job_id"] is not None and len(specs) > 1:
            rule = "left out where several payloads would share it"
            raise LimitExceeded("opts.id", arguments["job_id"], rule)
        return await self._add_all([{**spec, **arguments} for spec in specs])

    async def add_bulk_named(self, items: list[tuple[str, bytes]]) -> list[str]:
        """Add pairs of name and payload in as few writes as possible."""
        return await self._add_all([_named(item) for item in real_list("items", items)])

    async def add_in_bulk(self, delay_ms: int, payloads: list[bytes]) -> list[str]:
        """Add many jobs that are due together."""
        wait_ms = operator.index(delay_ms)
        return await self._add_all([{**spec, "delay_ms": wait_ms} for spec in _payloads(payloads)])

    async def cancel_delayed(self, job_id: str) -> bool:
        """Remove a delayed job before it is due; see `Queue.cancel_delayed`."""
        return await self._queue.cancel_delayed(job_id)

    async def cancel_delayed_bulk(self, job_ids: Sequence[str]) -> list[bool]:
        return await self._queue.cancel_delayed_bulk(job_ids)

    async def peek_dlq(self, limit: int) -> list[DeadLetter]:
        """The oldest entries of the DLQ; nothing moves."""
        return await self._queue.peek_dlq(limit)

    async def replay_dlq(self, limit: int) -> int:
        """Send the oldest entries of the DLQ back to the queue; the answer is how many went."""
        return await self._queue.replay_dlq(limit)

    async def upsert_repeatable(self, spec: dict[str, Any]) -> str:
        """Plan a job that repeats and return the plan's key.

        `spec` has `job_name`, `pattern` and `payload`, and may have `key`, `limit`,
        `start_after_ms`, `end_before_ms` and `missed_fires`.
        """
        return (await self._queue.upsert_repeatable_job(**repeat_arguments(spec))).id

    async def list_repeatable(self, limit: int) -> list[dict[str, Any]]:
        """The plans that fire next, soonest first; None stands for what a plan does not set."""
        return [_listed(meta) for meta in await self._queue.get_repeatable_jobs(limit)]

    async def remove_repeatable_by_key(self, key: str) -> bool:
        return await self._queue.remove_repeatable_by_key(key)

    async def get_result(self, id: str) -> bytes | None:
        """What the job's handler returned, as it was stored; see `Queue.get_job_result`."""
        return (await self._queue.results([id]))[0]

    async def get_result_bulk(self, ids: Sequence[str]) -> list[bytes | None]:
        return await self._queue.results(ids)

    async def shutdown(self) -> None:
        """Close the connection; every further call raises a StoreError."""
        await self._queue.close()

    async def _add_all(self, specs: list[dict[str, Any]]) -> list[str]:
        return [job.id for job in await self._queue.add_bulk(specs)]


class _BytesQueue(Queue):
    """A queue whose data is bytes, on the way in and on the way out."""

    _encode = staticmethod(raw_payload)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.producer_id = str(uuid4())
        self._free_ids = [self.producer_id]

    def _new_store(self, durability: Durability, connection: ConnectionSettings) -> ProducerStore:
        parts = (self._name, connection, self._settings, self._abilities, durability)
        with suppress(IndexError):
            return ProducerStore(*parts, producer_id=self._free_ids.pop())
        return ProducerStore(*parts)

    async def results(self, job_ids: Sequence[str]) -> list[bytes | None]:
        found = await self._result_store().leftovers(check_job_ids(job_ids))
        return [one.result for one in found]


def _payloads(payloads: Any) -> list[dict[str, Any]]:
    return [_named(("", payload)) for payload in real_list("payloads", payloads)]


def _named(item: Any) -> dict[str, Any]:
    match item:
        case (str() as name, bytes() as payload) if isinstance(item, tuple):
            return {"name": name, "data": payload}
        case _:
            raise SettingsError("a bulk", item, "made of bytes, or of tuples of name and bytes")


def _instant(when_ms: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=operator.index(when_ms))
    except OverflowError:
        raise LimitExceeded("when_ms", when_ms, "an instant before the year 10000") from None


def _listed(meta: RepeatableMeta) -> dict[str, Any]:
    pattern = meta.pattern.to_dict()
    if meta.pattern.kind == "cron":
        pattern.setdefault("tz", None)
    policy = meta.missed_fires
    return {
        "key": meta.key,
        "job_name": meta.job_name,
        "pattern": pattern,
        "next_fire_ms": meta.next_fire_ms,
        "limit": meta.limit,
        "start_after_ms": meta.start_after_ms,
        "end_before_ms": meta.end_before_ms,
        "missed_fires": None if policy is None else policy.to_dict(),
    }
