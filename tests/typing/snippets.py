"""What type checkers see of the public API; read by a type checker, never run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import chasquimq
from chasquimq import (
    BackoffSpec,
    EventSettings,
    Handler,
    HandlerFunction,
    HistorySettings,
    Hooks,
    Job,
    JobState,
    LeaseSettings,
    MissedFiresPolicy,
    PoolSettings,
    ProducerSettings,
    Queue,
    ReadSettings,
    RepeatableMeta,
    RepeatPattern,
    ResultSettings,
    RetryLater,
    RetrySettings,
    UnrecoverableError,
    UpkeepSettings,
    Worker,
    blocking,
    current_job,
)
from chasquimq.errors import ChasquiError, ConnectionLost, QueueFull, StoreError
from chasquimq.queue import CredentialProvider


async def adding() -> None:
    async with Queue("q", redis_url="redis://host", max_stream_len=10, resend=False) as queue:
        assert_type(queue, Queue)
        assert_type(queue.name, str)
        assert_type(queue.is_closed, bool)
        job = await queue.add("n", {"any": ["thing"]}, attempts=3, job_id="id", on_conflict="raise")
        assert_type(job, Job)
        assert_type(await queue.add("n", None, delay_ms=1.5), Job)
        assert_type(await queue.add("n", None, delay_ms=datetime.now(UTC)), Job)
        assert_type(await queue.add("n", None, delay=timedelta(1)), Job)
        assert_type(await queue.add("n", None, backoff=250), Job)
        assert_type(await queue.add("n", None, backoff=BackoffSpec.fixed(250)), Job)
        assert_type(await queue.add("n", None, backoff={"kind": "fixed", "delay_ms": 1}), Job)
        assert_type(await queue.add("n", None, repeat=RepeatPattern.every(1_000)), Job)
        assert_type(await queue.add_unique("n", 1, job_id="id"), Job)
        assert_type(await queue.add_bulk([{"name": "n", "data": 1}]), list[Job])
        jobs: list[Mapping[str, object]] = []
        assert_type(await queue.add_bulk(jobs), list[Job])


async def looking(queue: Queue) -> None:
    counts = await queue.counts()
    assert_type(counts.ready + counts.running + counts.delayed + counts.dead, int)
    assert_type(counts.backlog, int)
    assert_type(await queue.get_job("id"), JobState)
    assert_type(await queue.cancel_delayed("id"), bool)
    assert_type(await queue.cancel_delayed_bulk(["id"]), list[bool])
    assert_type(await queue.get_job_result("id"), Any)
    assert_type(await queue.get_job_result_bulk(["id"]), list[Any])
    assert_type(await queue.wait_for_result("id", timeout=5), Any)
    assert_type((await queue.peek_dlq(5))[0]["reason"], str)
    assert_type(await queue.purge_dlq(all=True), int)


async def repeating(queue: Queue) -> None:
    pattern = RepeatPattern.cron("0 9 * * *", tz="Europe/Lima")
    policy = MissedFiresPolicy.fire_all(3)
    plan = await queue.upsert_repeatable_job("n", 1, repeat=pattern, missed_fires=policy)
    assert_type(plan, Job)
    assert_type(await queue.get_repeatable_jobs(), list[RepeatableMeta])
    assert_type(await queue.remove_repeatable_by_key("key"), bool)


def without_a_loop() -> None:
    with blocking.Queue("q", redis_url="redis://host", max_stream_len=10) as queue:
        assert_type(queue, blocking.Queue)
        assert_type(queue.name, str)
        assert_type(queue.add("n", 1, job_id="id", delay_ms=5), Job)
        assert_type(queue.add_bulk([{"name": "n", "data": 1}]), list[Job])
        assert_type(queue.counts().ready, int)
        assert_type(queue.cancel_delayed("id"), bool)
        assert_type(queue.wait_for_result("id", timeout=5), Any)
        assert_type(queue.close(), None)


async def handle(job: Job) -> int:
    assert_type(job.id, str)
    assert_type(job.data, Any)
    assert_type(job.attempt + job.run_number + job.created_at_ms, int)
    assert_type(job.is_duplicate or job.redelivered or job.lease_lost, bool)
    assert_type(job.idempotency_key("step"), str)
    assert_type(current_job(), Job | None)
    if job.attempt > 3:
        raise UnrecoverableError("give up")
    raise RetryLater(1_000)


def handle_in_a_thread(job: Job) -> str:
    return job.name


async def working() -> None:
    one: HandlerFunction = handle
    other: HandlerFunction = handle_in_a_thread
    limited = Handler(other, attempts=3, backoff=250, timeout_ms=1_000, pool="process")
    worker = Worker("q", one, concurrency=5, pool="thread")
    assert_type(await worker.run(), None)
    Worker("q", {"a": one, "b": limited, "c": lambda job: job.data})
    Worker("q", limited)
    async with Worker("q", handle_in_a_thread, pool="process") as running:
        assert_type(running, Worker)


async def told(job: Job) -> None: ...


def choosing() -> None:
    Worker(
        "q", handle, concurrency=5,
        retry=RetrySettings(max_attempts=3, multiplier=1.5), lease=LeaseSettings(lease_ms=1_000),
        read=ReadSettings(count=5), results=ResultSettings(is_stored=True),
        events=EventSettings(level="terminal"), history=HistorySettings(is_kept=False),
        pool=PoolSettings(kind="process", size=2), hooks=Hooks(on_dead=told),
        upkeep=UpkeepSettings(run_scheduler=False),
    )  # fmt: skip
    Worker(
        "q", handle, max_attempts=3, claim_min_idle_ms=1_000, read_count=5, store_results=True,
        events="terminal", history=False, pool="process", pool_size=2, on_dead=told,
        run_scheduler=False, timeout_ms=None, shutdown_deadline_ms=5_000,
    )  # fmt: skip
    Queue("q", producer=ProducerSettings(max_stream_len=10), resend=False)
    blocking.Queue("q", producer=ProducerSettings(max_stream_len=10), resend=False)


def failing(error: ChasquiError) -> None:
    if isinstance(error, ConnectionLost):
        assert_type(list(error.job_ids), list[str])
        if error.outcome == "unknown":
            return
    if isinstance(error, QueueFull):
        assert_type(error.max_stream_len, int)
    if isinstance(error, StoreError):
        raise RuntimeError from error


async def give_credentials(address: str) -> tuple[str | None, str | None]:
    return None, address


provider: CredentialProvider = give_credentials
assert_type(chasquimq.version(), str)


async def wrong(queue: Queue, waiting: blocking.Queue) -> None:
    """Each line is an error, or its comment is one."""
    await queue.add("n")  # pyright: ignore[reportCallIssue]
    await queue.add(5, 1)  # pyright: ignore[reportArgumentType]
    await queue.add("n", 1, atempts=3)  # pyright: ignore[reportCallIssue]
    await queue.add("n", 1, attempts="3")  # pyright: ignore[reportArgumentType]
    await queue.add("n", 1, on_conflict="shout")  # pyright: ignore[reportArgumentType]
    await queue.add_bulk({"name": "n", "data": 1})  # pyright: ignore[reportArgumentType]
    waiting.add("n")  # pyright: ignore[reportCallIssue]
    waiting.add("n", 1, atempts=3)  # pyright: ignore[reportCallIssue]
    waiting.add("n", 1, attempts="3")  # pyright: ignore[reportArgumentType]
    blocking.Queue("q", max_len=5)  # pyright: ignore[reportCallIssue]
    Queue("q", max_len=5)  # pyright: ignore[reportCallIssue]
    Queue(5)  # pyright: ignore[reportArgumentType]
    Worker("q", 5)  # pyright: ignore[reportArgumentType]
    Worker("q", handle, pool="fibre")  # pyright: ignore[reportArgumentType]
    Worker("q", handle, max_atempts=3)  # pyright: ignore[reportCallIssue]
    Worker("q", handle, max_attempts="3")  # pyright: ignore[reportArgumentType]
    Worker("q", handle, lease=RetrySettings())  # pyright: ignore[reportArgumentType]
    Worker("q", handle, on_dead=5)  # pyright: ignore[reportArgumentType]
    Queue("q", resend="no")  # pyright: ignore[reportArgumentType]
