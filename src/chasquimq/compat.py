"""Gives the low-level handles of ChasquiMQ (Rust): Producer, Consumer and Scheduler.

They take options in dicts, in which unknown keys mean nothing, and bytes as data.
"""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from msgspec.structs import replace

from chasquimq.errors import LimitExceeded, SettingsError
from chasquimq.job import DeliveredJob, Job
from chasquimq.model.job_options import JobOptions
from chasquimq.model.json_value import ToDict
from chasquimq.queue.control import read_results
from chasquimq.queue.dlq import DeadLetter
from chasquimq.queue.queue import Queue
from chasquimq.repeat import RepeatableMeta
from chasquimq.settings import (
    CredentialProvider,
    UpkeepSettings,
    at_least,
    given,
)
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.new_job import raw_payload
from chasquimq.worker.upkeep import Upkeep
from chasquimq.worker.worker import Worker, one_for_zero

_BACKOFF_KEYS = ("kind", "delay_ms", "max_delay_ms", "multiplier", "jitter_ms")
_PATTERN_KEYS = {"cron": ("kind", "expression", "tz"), "every": ("kind", "interval_ms")}
_POLICY_KEYS = {"fire-all": ("kind", "max_catchup")}
_BOUNDS = ("limit", "start_after_ms", "end_before_ms")


def job_options(opts: Any) -> tuple[str, JobOptions]:
    """The name and the options of one job, or of every job of a bulk."""
    given = _dict("opts", opts)
    retry = _optional("opts.retry", given.get("retry")) or {}
    backoff = _optional("retry.backoff", retry.get("backoff"))
    name = given.get("name")
    options = JobOptions(
        job_id=given.get("id"),
        attempts=retry.get("max_attempts"),
        backoff=None if backoff is None else _known(backoff, _BACKOFF_KEYS),
    )
    return "" if name is None else name, options


def repeat_arguments(spec: Any) -> dict[str, Any]:
    """What an upsert of a repeatable job takes; an empty `key` asks for the plan's own."""
    given = _dict("spec", spec)
    pattern = _nested("spec.pattern", _needed(given, "pattern"))
    policy = _optional("spec.missed_fires", given.get("missed_fires"))
    key = given.get("key")
    return {
        "name": _needed(given, "job_name"),
        "data": _needed(given, "payload"),
        "repeat": _of_kind(pattern, _PATTERN_KEYS),
        "missed_fires": None if policy is None else _of_kind(policy, _POLICY_KEYS),
        "key": None if key == "" else key,
        **{name: given.get(name) for name in _BOUNDS},
    }


def real_list(what: str, value: Any) -> list[Any]:
    """The value, if it is a list; a str or bytes would be a sequence as well."""
    if not isinstance(value, list):
        raise TypeError(f"{what} must be a list, got {value!r:.100}")
    return cast("list[Any]", value)


def _dict(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} must be a dict, got {value!r:.100}")
    return cast("dict[str, Any]", value)


def _nested(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(what, value, "a dict")
    return cast("dict[str, Any]", value)


def _optional(what: str, value: Any) -> dict[str, Any] | None:
    return None if value is None else _nested(what, value)


def _needed(given: Mapping[str, Any], key: str) -> Any:
    if given.get(key) is None:
        raise SettingsError("spec", sorted(given), f"a dict with {key!r}")
    return given[key]


def _of_kind(given: Mapping[str, Any], keys_of: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """Only what its kind has a use for; an unknown kind is refused where it is read."""
    return _known(given, keys_of.get(str(given.get("kind")), ("kind",)))


def _known(given: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: given[key] for key in keys if given.get(key) is not None}


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
        return await self._queue.put(payload, *job_options(opts))

    async def add_in(self, delay_ms: int, payload: bytes) -> str:
        """Add a job that is due so many milliseconds from now."""
        return await self.add_in_with_options(delay_ms, payload, {})

    async def add_in_with_options(self, delay_ms: int, payload: bytes, opts: dict[str, Any]) -> str:
        wait_ms = operator.index(delay_ms)
        name, options = job_options(opts)
        return await self._queue.put(payload, name, replace(options, delay_ms=wait_ms))

    async def add_at(self, when_ms: int, payload: bytes) -> str:
        """Add a job that is due at an instant, in milliseconds since 1970; a past one is ready."""
        return await self.add_at_with_options(when_ms, payload, {})

    async def add_at_with_options(self, when_ms: int, payload: bytes, opts: dict[str, Any]) -> str:
        instant = _instant(when_ms)
        name, options = job_options(opts)
        return await self._queue.put(payload, name, replace(options, delay_ms=instant))

    async def add_bulk(self, payloads: list[bytes]) -> list[str]:
        """Add many jobs in as few writes as possible; the ids come in their order."""
        return await self._add_all(_payloads(payloads))

    async def add_bulk_with_options(self, payloads: list[bytes], opts: dict[str, Any]) -> list[str]:
        """The same, each with these options; an id is for one payload only."""
        name, options = job_options(opts)
        specs = _payloads(payloads)
        if options.job_id is not None and len(specs) > 1:
            rule = "left out where several payloads would share it"
            raise LimitExceeded("opts.id", options.job_id, rule)
        shared = {"name": name, **options.given()}
        return await self._add_all([{**spec, **shared} for spec in specs])

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

    @property
    def producer_id(self) -> str:
        return self._connections.producer_id

    async def put(self, payload: bytes, name: str, options: JobOptions) -> str:
        """Add a job; its id."""
        return (await self.add(name, payload, **options.given())).id

    async def results(self, job_ids: Sequence[str]) -> list[bytes | None]:
        return [one.result for one in await read_results(self._store(), job_ids)]


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


@dataclass(frozen=True, slots=True)
class BytesJob(ToDict):
    """A job as a Consumer's handler sees it; `attempt` counts the runs before this one."""

    id: str
    name: str
    payload: bytes = field(repr=False)
    created_at_ms: int
    attempt: int


BytesHandler = Callable[[BytesJob], Awaitable[Any]]


class Consumer:
    """Runs an async handler of raw payloads until shut down.

    With `store_results`, bytes that the handler returns are kept as they are; any other value
    keeps nothing. The settings are those of `Worker`, which is what most programs want.
    """

    def __init__(
        self,
        redis_url: str | None,
        queue_name: str,
        *,
        concurrency: int = 1,
        max_attempts: int = 25,
        group: str = "default",
        consumer_id: str | None = None,
        read_block_ms: int | None = None,
        read_count: int | None = None,
        claim_min_idle_ms: int | None = None,
        max_payload_bytes: int | None = None,
        dlq_max_stream_len: int | None = None,
        events_enabled: bool = True,
        delayed_enabled: bool = True,
        run_scheduler: bool = True,
        scheduler_tick_ms: int | None = None,
        store_results: bool = False,
        result_ttl_ms: int | None = None,
        credential_provider: CredentialProvider | None = None,
    ) -> None:
        self._handler: BytesHandler | None = None
        self._worker = _BytesWorker(
            queue_name,
            self._execute,
            redis_url=redis_url,
            concurrency=one_for_zero("concurrency", concurrency) or concurrency,
            max_attempts=max_attempts,
            group=group,
            consumer_id=consumer_id,
            read_block_ms=read_block_ms,
            read_count=read_count,
            claim_min_idle_ms=claim_min_idle_ms,
            max_payload_bytes=max_payload_bytes,
            dlq_max_stream_len=dlq_max_stream_len,
            events_enabled=events_enabled,
            delayed_enabled=delayed_enabled,
            run_scheduler=run_scheduler,
            scheduler_tick_ms=scheduler_tick_ms,
            store_results=store_results,
            result_ttl_ms=result_ttl_ms,
            credential_provider=credential_provider,
        )

    async def run(self, handler: BytesHandler) -> None:
        """Run until shut down; a second call joins the first, whatever its handler.

        A consumer that was shut down does not run again: the call returns at once.
        """
        if not callable(handler):
            raise TypeError(f"handler must be an async function that takes a job, got {handler!r}")
        if self._handler is None:
            self._handler = handler
        await self._worker.run()

    def shutdown(self) -> None:
        """Ask `run` to end: it reads nothing more and waits for the handlers that run."""
        # Asking a worker twice means that its handlers have no time left.
        if not self._worker.is_closed:
            self._worker.request_stop()

    async def _execute(self, job: Job) -> bytes | None:
        assert isinstance(job, DeliveredJob), "a worker hands out what was delivered"
        assert self._handler is not None, "a consumer runs with a handler"
        value = await self._handler(
            BytesJob(job.id, job.name, job.delivery.payload, job.created_at_ms, job.attempt)
        )
        return value if isinstance(value, bytes) and value else None


class _BytesWorker(Worker):
    """A worker whose results are bytes already."""

    _encode = staticmethod(bytes)


class Scheduler:
    """Turns the plans of a queue into jobs, one leader at a time; see `Upkeep` for all else.

    `max_stream_len` is accepted and changes nothing: it is a cap on adds, and fires are exempt.
    """

    def __init__(
        self,
        redis_url: str | None,
        queue_name: str,
        *,
        tick_interval_ms: int | None = None,
        batch: int | None = None,
        max_stream_len: int | None = None,
        lock_ttl_secs: int | None = None,
        holder_id: str | None = None,
        credential_provider: CredentialProvider | None = None,
    ) -> None:
        _check("tick_interval_ms", tick_interval_ms, 0)
        _check("batch", batch, 1)
        _check("max_stream_len", max_stream_len, 0)
        _check("lock_ttl_secs", lock_ttl_secs, 1)
        settings = given(
            UpkeepSettings,
            delayed_enabled=False,
            scheduler_tick_ms=1 if tick_interval_ms == 0 else tick_interval_ms,
            fire_max=batch,
            lock_ttl_s=lock_ttl_secs,
            scheduler_holder=holder_id or None,
        )
        self._is_closed = False
        self._upkeep = Upkeep(
            queue_name,
            redis_url=redis_url,
            credential_provider=credential_provider,
            settings=settings,
        )

    async def run(self) -> None:
        """Run until shut down; afterwards the call returns at once."""
        if not self._is_closed:
            await self._upkeep.run()

    def shutdown(self) -> None:
        """Ask `run` to end; it lets another lead at once."""
        self._is_closed = True
        self._upkeep.request_stop()


def _check(name: str, value: int | None, least: int) -> None:
    if value is not None:
        at_least(name, value, least)
