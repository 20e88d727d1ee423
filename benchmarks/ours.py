"""Measures this package through its public classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.instruments import Stopwatch, Stretch, time_calls, until_empty
from benchmarks.peers.arrivals import Starts, arrive
from benchmarks.peers.measuring import digest
from benchmarks.scenario import Plan
from chasquimq.queue import Queue
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.connect import open_connection
from chasquimq.worker import Worker

if TYPE_CHECKING:
    from benchmarks.instruments import Recorder
    from benchmarks.scenario import Work
    from chasquimq.job import Job


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
    """Work on a filled queue until the last wanted ack is confirmed.

    Timed from the moment jobs are let in; from the worker's start when it has to promote them.
    """
    observer = await open_connection(ConnectionSettings(url=plan.url))
    if recorder:
        recorder.ignore(observer)
    run = _Run(plan, recorder)
    worker = new_worker(plan, run.handler, on_startup=run.start)
    running = asyncio.create_task(worker.run())
    await _either(running, run.until_all_ran())
    await until_empty(observer, plan)
    stretch = run.watch.stop(run.count)
    if recorder:
        recorder.stop()
    await worker.close()
    await running
    await observer.close()
    run.check()
    return stretch


async def arrivals(plan: Plan) -> dict[str, Any]:
    """Add jobs when their time has come."""
    async with Queue(plan.queue, redis_url=plan.url) as queue:
        raw = {name: getattr(plan, name) for name in plan.__struct_fields__}
        return await arrive(raw, lambda payload: queue.add(plan.job_name, payload))


async def starts(plan: Plan) -> dict[str, Any]:
    """Run jobs as they come, and note how long each waited to start."""
    noted = Starts()

    async def handler(job: Job) -> None:
        noted.started(job.data)

    worker = new_worker(plan, handler)
    running = asyncio.create_task(worker.run())
    answer = await noted.all_started()
    await worker.close()
    await running
    return answer


class BenchWorker(Worker):
    """A worker whose leases can be left alone, which only a benchmark should want."""

    def leave_leases(self) -> None:
        lease = replace(self._settings.lease, enabled=False)
        self._settings = replace(self._settings, lease=lease)


def new_worker(plan: Plan, handler: Callable[[Job], Any], **hooks: Any) -> BenchWorker:
    """A worker with what the plan asks for and nothing else."""
    worker = BenchWorker(
        plan.queue, handler, redis_url=plan.url, concurrency=plan.concurrency,
        claim_min_idle_ms=plan.lease_ms or None, **_options(plan.work), **hooks,
    )  # fmt: skip
    if plan.lease_ms == 0:
        worker.leave_leases()
    return worker


def _options(work: Work) -> dict[str, Any]:
    return {
        "events": work.events,
        "history": work.has_history,
        "delayed_enabled": work.needs_promotion,
        "run_scheduler": False,
        "store_results": work.result is not None,
    }


async def _either(running: asyncio.Task[None], done: Any) -> None:
    """Wait for the end, or for the worker's own, which says why."""
    await asyncio.wait([running, asyncio.ensure_future(done)], return_when="FIRST_COMPLETED")
    if running.done():
        running.result()


class _Run:
    """A handler that looks at its payload and counts, and fails first when asked to."""

    def __init__(self, plan: Plan, recorder: Recorder | None) -> None:
        self._plan = plan
        self._work = plan.work
        self._recorder = recorder
        self._all_ran = asyncio.Event()
        self._last: Any = None
        self.count = 0
        self.watch = Stopwatch()

    async def start(self, *_: object) -> None:
        if self._recorder:
            self._recorder.start()
        if not self._work.needs_promotion:
            self.watch = Stopwatch()

    async def handler(self, job: Job) -> str | None:
        data = job.data
        if self._work.fails_once and job.attempt == 0:
            raise ValueError("once")
        _ = data["k0"]
        self.count += 1
        if self.count == self._plan.jobs:
            self._last = data
            self._all_ran.set()
        return self._work.result

    async def until_all_ran(self) -> None:
        # Where others share the queue it is not known which worker runs how many.
        if self._plan.processes == 1:
            await self._all_ran.wait()

    def check(self) -> None:
        if self._last is not None:
            assert digest(self._last) == digest(self._plan.payload), "another payload arrived"
