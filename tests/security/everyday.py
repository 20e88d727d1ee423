"""Everything that producers, workers, schedulers, looks and the pipeline ask of a server."""

from __future__ import annotations

import asyncio

from chasquimq import BackoffSpec, Queue, QueueEvents, RepeatPattern, UnrecoverableError, Worker
from chasquimq.cli.app import main
from chasquimq.settings import ConnectionSettings
from chasquimq.spark.pipeline.sampler import ServerSampler
from chasquimq.spark.sources.events import EventsSource
from chasquimq.spark.sources.history import HistorySource
from support.drive import Drive
from support.waiting import eventually

LOOKS = [
    ("inspect",), ("workers",), ("delayed", "list"), ("dlq", "peek"), ("repeatable", "list"),
    ("repeatable", "quarantined"), ("metrics",), ("watch", "--count", "1"),
    ("events", "--from", "0", "--count", "1"),
]  # fmt: skip


async def produce(queue: Queue) -> None:
    """Jobs of every kind, and everything a producer may take back or ask for."""
    await queue.add("fine", 1)
    await queue.add_bulk([{"name": "fine", "data": at} for at in range(3)])
    await queue.add("fine", 2, job_id="own")
    await queue.add("retried", 3, attempts=2, backoff=BackoffSpec.fixed(1, 0))
    await queue.add("hopeless", 4)
    await queue.add("slow", 4)
    await queue.add("later", 5, delay_ms=50, job_id="own and later")
    await queue.add("later", 6, delay_ms=50)
    taken_back = await queue.add("later", 7, delay_ms=3_600_000)
    assert await queue.cancel_delayed(taken_back.id)
    await queue.upsert_repeatable_job("tick", 8, repeat=RepeatPattern.every(50), limit=1)
    gone = await queue.upsert_repeatable_job("gone", 9, repeat=RepeatPattern.every(3_600_000))
    assert await queue.remove_repeatable_by_key(gone.id)
    assert await queue.get_repeatable_jobs()
    assert (await queue.counts()).ready


async def handle(job) -> object:
    if job.name == "slow":
        # Longer than a lease, so that it is renewed.
        await asyncio.sleep(0.7)
    if job.name == "hopeless":
        raise UnrecoverableError("never")
    if job.name == "retried" and job.attempt == 0:
        raise ValueError("not now")
    return job.data


async def work(url: str, queue: Queue) -> None:
    """Run all of it: promotion, fires, retries, burials, results, leases and a polite end."""
    options = {"store_results": True, "claim_min_idle_ms": 600, "scheduler_tick_ms": 50}
    worker = Worker(queue.name, handle, redis_url=url, concurrency=2, **options)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: running.done() or worker.health().completed >= 10, what="the work")
    assert await queue.wait_for_result("own", timeout=10) == 2
    await worker._session.pipeline.upkeep.janitor.run_once()
    await eventually(lambda: worker.health().lease_beat_age_ms < 200, what="a renewal")
    await worker.close()
    await running


async def look_after(queue: Queue, url: str) -> None:
    """What is done about dead jobs, and what is asked about all of them."""
    assert (await queue.peek_dlq())[0]["reason"] == "unrecoverable"
    assert await queue.replay_dlq() == 1
    assert (await queue.get_job("own")) is not None
    assert await queue.purge_dlq(all=True) == 0
    async for _ in QueueEvents(queue.name, redis_url=url, last_event_id="0", block_ms=50):
        break


async def look(url: str, queue_name: str) -> None:
    """The looks of the command line."""
    for command, *rest in LOOKS:
        words = [command, *rest, queue_name] if rest and "-" not in rest[0] else None
        args = words or [command, queue_name, *rest]
        assert await asyncio.to_thread(main, [*args, "--redis-url", url]) == 0, args


def read_for_spark(url: str, queue_name: str) -> None:
    """What executors and the pipeline's driver read."""
    options = {"chasqui.redis.url": url, "subscribe": queue_name, "startingOffsets": "earliest"}
    assert Drive(HistorySource, options).batches()
    assert Drive(EventsSource, options).batches()
    sampler = ServerSampler(ConnectionSettings(url=url))
    assert sampler.sample([queue_name])
    sampler.close()


async def do_everything(url: str, queue_name: str) -> None:
    async with Queue(queue_name, redis_url=url, events_enabled=True) as queue:
        await produce(queue)
        await work(url, queue)
        await look_after(queue, url)
    await look(url, queue_name)
    await asyncio.to_thread(read_for_spark, url, queue_name)
