"""Measures taskiq with taskiq-redis: one receiver on a stream, a hundred entries a read."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from measuring import Answer, Plan, Runs, time_adds
from redis import Redis
from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

package = "taskiq"
FILL_IN_FLIGHT = 50


async def add(plan: Plan) -> Answer:
    """It has no bulk: the jobs of a batch are added side by side."""
    broker, task = declared(plan, Runs(plan))
    await broker.startup()

    async def one() -> None:
        await task.kiq(plan["payload"])

    async def batch() -> None:
        await asyncio.gather(*(one() for _ in range(plan["batch"])))

    return await time_adds(plan, one if plan["batch"] == 1 else batch)


async def consume(plan: Plan) -> None:
    """Fill the queue, then run a receiver until every job has run."""
    runs = Runs(plan)
    broker, task = declared(plan, runs)
    await broker.startup()
    await fill(plan, task)
    client = Redis.from_url(plan["url"])
    runs.answer_when_done(client.dbsize, version=version(package))
    await run_receiver_task(
        broker, max_async_tasks=plan["concurrency"], max_prefetch=plan["concurrency"],
        validate_params=False,
    )  # fmt: skip


def declared(plan: Plan, runs: Runs) -> tuple[Any, Any]:
    work = plan["work"]
    # From the first entry: the queue is filled before a worker reads.
    broker = RedisStreamBroker(plan["url"], consumer_id="0")
    if work["result"] is not None:
        broker = broker.with_result_backend(
            RedisAsyncResultBackend(plan["url"], result_ex_time=3600)
        )
    if not work["fails_once"]:
        return broker, broker.task(task_name="handler")(_plain_handler(runs))
    broker = broker.with_middlewares(SimpleRetryMiddleware(default_retry_count=2))
    declare = broker.task(task_name="handler", retry_on_error=True, max_retries=2)
    return broker, declare(_retried_handler(runs))


def _plain_handler(runs: Runs) -> Any:
    async def handler(payload: dict[str, str]) -> str | None:
        return runs.ran(payload)

    return handler


def _retried_handler(runs: Runs) -> Any:
    # Only a dependency gives a job the number of its runs, and it is not free.
    context: Any = TaskiqDepends()

    async def handler(payload: dict[str, str], context: Context = context) -> str | None:
        return runs.ran(payload, is_retry="_retries" in context.message.labels)

    handler.__annotations__["context"] = Context
    return handler


async def fill(plan: Plan, task: Any) -> None:
    """Add the jobs; nothing of this is measured."""
    for start in range(0, plan["jobs"], FILL_IN_FLIGHT):
        size = min(FILL_IN_FLIGHT, plan["jobs"] - start)
        await asyncio.gather(*(task.kiq(plan["payload"]) for _ in range(size)))
