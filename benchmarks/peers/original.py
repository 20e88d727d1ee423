"""Measures the package of ChasquiMQ (Rust), in an environment that has it installed."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgpack
from arrivals import Starts
from arrivals import arrive as arrive_by
from measuring import Answer, Plan, digest, mark, spent, time_adds
from redis.asyncio import Redis

import chasquimq

package = "chasquimq"
POLL_S = 0.001
SHARED_POLL_S = 0.005
JOBS_PER_FILL = 1_000
Handler = Callable[[Any], Awaitable[Any]]


async def add(plan: Plan) -> Answer:
    """Callers add side by side, each waiting for its own answer."""
    queue = chasquimq.Queue(plan["queue"], redis_url=plan["url"])
    batch: list[Any] = [{"name": plan["job_name"], "data": plan["payload"]}] * plan["batch"]
    if plan["batch"] == 1:
        return await time_adds(plan, lambda: queue.add(plan["job_name"], plan["payload"]))
    return await time_adds(plan, lambda: queue.add_bulk(batch))


async def consume(plan: Plan) -> Answer:
    """Until the wanted acks are seen: from the first job's start, or from the worker's own.

    The worker's own counts where jobs must be promoted before they can start.
    """
    if plan["work"]["delay_ms"]:
        await fill(plan)
    run = Run(plan)
    if run.needs_promotion:
        run.began = mark()
    running = asyncio.ensure_future(worker(plan, run.handler).run())
    if plan["processes"] == 1:
        all_ran = asyncio.ensure_future(run.all_ran.wait())
        await asyncio.wait([running, all_ran], return_when="FIRST_COMPLETED")
    if running.done():
        running.result()
    await until_left(plan)
    return spent(run.began or mark()) | {
        "jobs": run.count,
        "payload_digest": digest(run.last or plan["payload"]),
    }


async def arrive(plan: Plan) -> Answer:
    """Add jobs when their time has come."""
    queue = chasquimq.Queue(plan["queue"], redis_url=plan["url"])
    return await arrive_by(plan, lambda payload: queue.add(plan["job_name"], payload))


async def start(plan: Plan) -> Answer:
    """Run jobs as they come, and note how long each waited to start."""
    noted = Starts()

    async def handler(job: Any) -> None:
        noted.started(job.data)

    running = asyncio.ensure_future(worker(plan, handler).run())
    answer = await noted.all_started()
    assert not running.done(), "the worker ended by itself"
    return answer


class Run:
    """A handler that looks at its payload and counts, and fails first when asked to."""

    def __init__(self, plan: Plan) -> None:
        work = plan["work"]
        self._jobs, self._fails_once, self._result = (
            plan["jobs"],
            work["fails_once"],
            work["result"],
        )
        self.needs_promotion = needs_promotion(work)
        self.all_ran = asyncio.Event()
        self.began: Answer | None = None
        self.last: dict[str, str] | None = None
        self.count = 0

    async def handler(self, job: Any) -> str | None:
        data = job.data
        if self.began is None:
            self.began = mark()
        if self._fails_once and job.attempt == 0:
            raise ValueError("once")
        _ = data["k0"]
        self.count += 1
        if self.count == self._jobs:
            self.last = data
            self.all_ran.set()
        return self._result


def worker(plan: Plan, handler: Handler) -> Any:
    work = plan["work"]
    return chasquimq.Worker(
        plan["queue"], handler, redis_url=plan["url"], concurrency=plan["concurrency"],
        events_enabled=work["events"] != "off",
        delayed_enabled=needs_promotion(work),
        run_scheduler=False,
        store_results=work["result"] is not None,
    )  # fmt: skip


def needs_promotion(work: dict[str, Any]) -> bool:
    return bool(work["delay_ms"] or work["fails_once"])


async def until_left(plan: Plan) -> None:
    client = Redis.from_url(plan["url"])
    pause_s = POLL_S if plan["processes"] == 1 else SHARED_POLL_S
    # Only the server knows, and it does not report it unasked.
    while await client.xlen(plan["stream"]) > plan["left"]:  # noqa: ASYNC110
        await asyncio.sleep(pause_s)


async def fill(plan: Plan) -> None:
    """Add delayed jobs in bulk; nothing of this is measured."""
    producer = chasquimq.Producer(plan["url"], plan["queue"])
    payload: bytes = cast("Any", msgpack).packb(plan["payload"])
    for start in range(0, plan["jobs"], JOBS_PER_FILL):
        size = min(JOBS_PER_FILL, plan["jobs"] - start)
        await producer.add_in_bulk(plan["work"]["delay_ms"], [payload] * size)
