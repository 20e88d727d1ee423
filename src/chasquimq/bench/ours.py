"""Measures this package through its public nouns."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from chasquimq.bench.scenario import JOB_NAME, JOBS_PER_PRELOAD, PAYLOAD, QUEUE
from chasquimq.bench.timing import Stopwatch, Stretch, time_calls, until_empty
from chasquimq.queue import Queue
from chasquimq.settings import ConnectionSettings
from chasquimq.store.connection import open_connection
from chasquimq.worker import Worker

if TYPE_CHECKING:
    from chasquimq.bench.scenario import Plan
    from chasquimq.bench.tape import Recorder

_QUIET = {"events_enabled": False, "delayed_enabled": False, "run_scheduler": False}


async def preload(url: str, jobs: int) -> None:
    """Fill the queue for a worker of any side: all read the same bytes."""
    async with Queue(QUEUE, redis_url=url) as queue:
        for start in range(0, jobs, JOBS_PER_PRELOAD):
            size = min(JOBS_PER_PRELOAD, jobs - start)
            await queue.add_bulk([{"name": JOB_NAME, "data": PAYLOAD}] * size)


async def add(plan: Plan, recorder: Recorder | None = None) -> Stretch:
    """Add jobs, one or a batch a call."""
    batch = [{"name": plan.job_name, "data": plan.payload}] * plan.batch
    async with Queue(plan.queue, redis_url=plan.url) as queue:
        stretch = await time_calls(
            (lambda: queue.add(plan.job_name, plan.payload))
            if plan.batch == 1
            else (lambda: queue.add_bulk(batch)),
            plan,
            recorder.start if recorder else lambda: None,
        )
        if recorder:
            recorder.stop()
    return stretch


async def consume(plan: Plan, recorder: Recorder | None = None) -> Stretch:
    """Empty a preloaded queue: from the moment jobs are let in until the last ack is confirmed."""
    observer = await open_connection(ConnectionSettings(url=plan.url))
    if recorder:
        recorder.ignore(observer)
    run = _Run(plan, recorder)
    worker = Worker(
        plan.queue, run.handler, redis_url=plan.url, concurrency=plan.concurrency,
        on_startup=run.start, **_known_to_worker(_QUIET),
    )  # fmt: skip
    running = asyncio.create_task(worker.run())
    await asyncio.wait(
        [running, asyncio.create_task(run.all_ran.wait())], return_when="FIRST_COMPLETED"
    )
    if running.done():
        running.result()
    await until_empty(observer, plan)
    stretch = run.watch.stop(plan.jobs)
    if recorder:
        recorder.stop()
    await worker.close()
    await running
    await observer.close()
    return stretch


class _Run:
    """A handler that does nothing but count."""

    def __init__(self, plan: Plan, recorder: Recorder | None) -> None:
        self._left = plan.jobs
        self._recorder = recorder
        self.all_ran = asyncio.Event()
        self.watch = Stopwatch()

    async def start(self, *_: object) -> None:
        if self._recorder:
            self._recorder.start()
        self.watch = Stopwatch()

    async def handler(self, _job: object) -> None:
        self._left -= 1
        if self._left == 0:
            self.all_ran.set()


def _known_to_worker(options: dict[str, Any]) -> dict[str, Any]:
    # What this worker cannot do yet needs no switching off.
    known = inspect.signature(Worker).parameters
    return {name: value for name, value in options.items() if name in known}
