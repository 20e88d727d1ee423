"""Measures SAQ: one worker, nothing kept of finished jobs unless results are asked for."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from typing import Any

from measuring import Answer, Plan, Runs, time_adds
from redis import Redis
from saq import Queue, Worker

package = "saq"
FILL_IN_FLIGHT = 50
KEEP_NOTHING = -1


async def add(plan: Plan) -> Answer:
    """It has no bulk: the jobs of a batch are added side by side."""
    queue = await connected(plan)

    async def one() -> None:
        await queue.enqueue("handler", payload=plan["payload"])

    async def batch() -> None:
        await asyncio.gather(*(one() for _ in range(plan["batch"])))

    return await time_adds(plan, one if plan["batch"] == 1 else batch)


async def consume(plan: Plan) -> None:
    """Fill the queue, then run a worker until every job has run."""
    queue = await connected(plan)
    await fill(plan, queue)
    runs = Runs(plan)
    client = Redis.from_url(plan["url"])

    async def handler(ctx: dict[str, Any], *, payload: dict[str, str]) -> str | None:
        return runs.ran(payload, is_retry=ctx["job"].attempts > 1)

    worker = Worker(queue, [("handler", handler)], concurrency=plan["concurrency"])
    runs.answer_when_done(client.dbsize, version=version(package), concurrency=worker.concurrency)
    await worker.start()


async def connected(plan: Plan) -> Queue:
    queue = Queue.from_url(plan["url"])
    await queue.connect()
    return queue


async def fill(plan: Plan, queue: Queue) -> None:
    """Add the jobs; nothing of this is measured."""
    work = plan["work"]
    options = {
        "ttl": 600 if work["result"] is not None else KEEP_NOTHING,
        "retries": 2 if work["fails_once"] else 1,
        # It knows delays by the second.
        "scheduled": int(time.time()) if work["delay_ms"] else 0,
    }
    for start in range(0, plan["jobs"], FILL_IN_FLIGHT):
        size = min(FILL_IN_FLIGHT, plan["jobs"] - start)
        await asyncio.gather(
            *(queue.enqueue("handler", payload=plan["payload"], **options) for _ in range(size))
        )
