"""Measures this package through its public nouns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from chasquimq.bench.scenario import JOB_NAME, JOBS_PER_PRELOAD, PAYLOAD, QUEUE, RUN_ONCE, Work
from chasquimq.bench.timing import Stopwatch, Stretch, time_calls, until_empty
from chasquimq.queue import Queue
from chasquimq.settings import ConnectionSettings
from chasquimq.store.connection import open_connection
from chasquimq.worker import Worker

if TYPE_CHECKING:
    from chasquimq.bench.scenario import Plan
    from chasquimq.bench.tape import Recorder
    from chasquimq.job import Job

_AT_ONCE = {"kind": "fixed", "delay_ms": 0, "jitter_ms": 0}


async def preload(url: str, jobs: int, work: Work = RUN_ONCE) -> None:
    """Fill the queue for a worker of any side: all read the same bytes."""
    job: dict[str, Any] = {"name": JOB_NAME, "data": PAYLOAD}
    if work.delay_ms:
        job |= {"delay_ms": work.delay_ms}
    if work.fails_once:
        job |= {"attempts": work.runs_per_job, "backoff": _AT_ONCE}
    async with Queue(QUEUE, redis_url=url) as queue:
        for start in range(0, jobs, JOBS_PER_PRELOAD):
            size = min(JOBS_PER_PRELOAD, jobs - start)
            await queue.add_bulk([job] * size)


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
    """Empty a preloaded queue until the last ack is confirmed.

    Timed from the moment jobs are let in; from the worker's start when it has to promote them.
    """
    observer = await open_connection(ConnectionSettings(url=plan.url))
    if recorder:
        recorder.ignore(observer)
    run = _Run(plan, recorder)
    worker = Worker(
        plan.queue, run.handler, redis_url=plan.url, concurrency=plan.concurrency,
        on_startup=run.start, **_options(plan.work),
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
    """A handler that does nothing but count, and fails first when asked to."""

    def __init__(self, plan: Plan, recorder: Recorder | None) -> None:
        self._left = plan.jobs
        self._work = plan.work
        self._recorder = recorder
        self.all_ran = asyncio.Event()
        self.watch = Stopwatch()

    async def start(self, *_: object) -> None:
        if self._recorder:
            self._recorder.start()
        if not self._work.needs_promotion:
            self.watch = Stopwatch()

    async def handler(self, job: Job) -> str | None:
        if self._work.fails_once and job.attempt == 0:
            raise ValueError("once")
        self._left -= 1
        if self._left == 0:
            self.all_ran.set()
        return self._work.result


def _options(work: Work) -> dict[str, Any]:
    return {
        "events_enabled": work.has_events,
        "history": work.has_history,
        "delayed_enabled": work.needs_promotion,
        "run_scheduler": False,
        "store_results": work.result is not None,
    }
