"""Measures arq: one worker, jobs polled without a pause, no results unless asked for."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from arq import Retry, create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker
from measuring import Answer, Once, Plan, Runs, time_adds
from redis import Redis

package = "arq"
# Its default of half a second between two looks at the queue would be all that is measured.
POLL_S = 0.01
FILL_IN_FLIGHT = 50


async def add(plan: Plan) -> Answer:
    """It has no bulk: the jobs of a batch are added side by side."""
    pool = await create_pool(RedisSettings.from_dsn(plan["url"]))

    async def one() -> None:
        await pool.enqueue_job("handler", plan["payload"])

    async def batch() -> None:
        await asyncio.gather(*(one() for _ in range(plan["batch"])))

    return await time_adds(plan, one if plan["batch"] == 1 else batch)


async def consume(plan: Plan) -> None:
    """Fill the queue, then run a worker until every job has run."""
    await fill(plan)
    runs = Runs(plan)
    client = Redis.from_url(plan["url"])
    running = new_worker(plan, runs)
    runs.answer_when_done(client.dbsize, version=version(package), concurrency=running.max_jobs)
    await running.async_run()


def new_worker(plan: Plan, runs: Runs) -> Worker:
    async def handler(ctx: dict[str, Any], payload: dict[str, str]) -> str | None:
        try:
            return runs.ran(payload, is_retry=ctx["job_try"] > 1)
        except Once:
            # Any other error would end the job.
            raise Retry(defer=0) from None

    return Worker(
        [func(handler, name="handler")],
        redis_settings=RedisSettings.from_dsn(plan["url"]),
        max_jobs=plan["concurrency"],
        poll_delay=POLL_S,
        keep_result=3600 if plan["work"]["result"] is not None else 0,
        handle_signals=False,
        log_results=False,
    )


async def fill(plan: Plan) -> None:
    """Add the jobs; nothing of this is measured."""
    pool = await create_pool(RedisSettings.from_dsn(plan["url"]))
    delay_s = plan["work"]["delay_ms"] / 1000 or None
    for start in range(0, plan["jobs"], FILL_IN_FLIGHT):
        size = min(FILL_IN_FLIGHT, plan["jobs"] - start)
        await asyncio.gather(
            *(pool.enqueue_job("handler", plan["payload"], _defer_by=delay_s) for _ in range(size))
        )
    await pool.aclose()
