"""Measures the original package; run by the Python of an environment that has it installed.

Takes the plan of one measurement as JSON and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any

from redis.asyncio import Redis

import chasquimq

POLL_S = 0.001


async def add(plan: dict[str, Any]) -> dict[str, float]:
    """Callers add side by side, each waiting for its own answer."""
    queue = chasquimq.Queue(plan["queue"], redis_url=plan["url"])
    batch: list[Any] = [{"name": plan["job_name"], "data": plan["payload"]}] * plan["batch"]

    async def call(count: int) -> None:
        for _ in range(count):
            if plan["batch"] == 1:
                await queue.add(plan["job_name"], plan["payload"])
            else:
                await queue.add_bulk(batch)

    callers = plan["in_flight"]
    await asyncio.gather(*(call(1) for _ in range(callers)))
    each = plan["jobs"] // (plan["batch"] * callers)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call(each) for _ in range(callers)))
    return spent(began_s, began_cpu_s) | {"jobs": each * callers * plan["batch"]}


async def consume(plan: dict[str, Any]) -> dict[str, float]:
    """From the first job's start until the stream is empty."""
    client = Redis.from_url(plan["url"])  # pyright: ignore[reportUnknownMemberType]  half typed
    began: list[float] = []
    all_ran = asyncio.Event()
    left = plan["jobs"]

    async def handler(_job: object) -> None:
        nonlocal left
        if not began:
            began[:] = time.perf_counter(), time.process_time()
        left -= 1
        if left == 0:
            all_ran.set()

    options: dict[str, Any] = {
        "events_enabled": False, "delayed_enabled": False, "run_scheduler": False,
    }  # fmt: skip
    worker = chasquimq.Worker(
        plan["queue"], handler, redis_url=plan["url"], concurrency=plan["concurrency"], **options
    )
    running = asyncio.ensure_future(worker.run())
    await asyncio.wait(
        [running, asyncio.ensure_future(all_ran.wait())], return_when="FIRST_COMPLETED"
    )
    # Only the server knows, and it does not tell unasked.
    while await client.xlen(plan["stream"]):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    return spent(*began) | {"jobs": plan["jobs"]}


def spent(began_s: float, began_cpu_s: float) -> dict[str, float]:
    """Time and processor time since the two marks, threads included."""
    return {
        "seconds": time.perf_counter() - began_s,
        "cpu_seconds": time.process_time() - began_cpu_s,
    }


def run(plan: dict[str, Any]) -> dict[str, Any]:
    measuring = consume(plan) if plan["act"] == "consume" else add(plan)
    return run_on(plan["loop"], measuring) | {
        "version": version("chasquimq"),
        "loop": plan["loop"],
    }


def run_on(loop: str, measuring: Coroutine[Any, Any, dict[str, float]]) -> dict[str, Any]:
    if loop == "asyncio":
        return asyncio.run(measuring)
    import uvloop

    return uvloop.run(measuring)


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)  # noqa: T201 - its only answer
    # The original may crash while the interpreter ends; the figures are out already.
    os._exit(0)
