"""Measures streaq: one worker, added in pipelines, no results unless asked for."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from typing import Any

from measuring import Answer, Once, Plan, Runs, time_adds
from redis import Redis
from streaq import StreaqRetry, Worker

package = "streaq"
JOBS_PER_FILL = 500


async def add(plan: Plan) -> Answer:
    """A batch leaves in one pipeline."""
    worker, task = declared(plan, Runs(plan))

    async def one() -> None:
        await task.enqueue(plan["payload"])

    async def batch() -> None:
        await worker.enqueue_many([task.enqueue(plan["payload"]) for _ in range(plan["batch"])])

    async with worker:
        return await time_adds(plan, one if plan["batch"] == 1 else batch)


async def consume(plan: Plan) -> None:
    """Fill the queue, then run a worker until every job has run."""
    runs = Runs(plan)
    worker, task = declared(plan, runs)
    async with worker:
        await fill(plan, worker, task)
    client = Redis.from_url(plan["url"])
    worker, _ = declared(plan, runs)
    runs.answer_when_done(client.dbsize, version=version(package), concurrency=worker.concurrency)
    await worker.run_async()


def declared(plan: Plan, runs: Runs) -> tuple[Worker[Any], Any]:
    worker = Worker(redis_url=plan["url"], concurrency=plan["concurrency"], handle_signals=False)
    kept_s = 300 if plan["work"]["result"] is not None else 0

    @worker.task(name="handler", ttl=kept_s, silent=True)
    async def handler(payload: dict[str, str]) -> str | None:
        try:
            is_retry = plan["work"]["fails_once"] and handler.context.tries > 1
            return runs.ran(payload, is_retry=is_retry)
        except Once:
            # Any other error would end the job.
            raise StreaqRetry(delay=0) from None

    return worker, handler


async def fill(plan: Plan, worker: Worker[Any], task: Any) -> None:
    """Add the jobs; nothing of this is measured."""
    delay_ms = plan["work"]["delay_ms"]
    for start in range(0, plan["jobs"], JOBS_PER_FILL):
        size = min(JOBS_PER_FILL, plan["jobs"] - start)
        jobs = [task.enqueue(plan["payload"]) for _ in range(size)]
        if delay_ms:
            jobs = [job.start(delay=timedelta(milliseconds=delay_ms)) for job in jobs]
        await worker.enqueue_many(jobs)
