"""Consumer: the running side of a queue for handlers that decode their own payloads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from chasquimq.job import DeliveredJob, Job
from chasquimq.model.json_value import ToDict
from chasquimq.settings import CredentialProvider
from chasquimq.worker import Worker
from chasquimq.worker.options import one_for_zero


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
