"""Measures the original package; run by the Python of an environment that has it installed.

Takes the plan of one measurement as JSON and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import version
from typing import Any, cast

import msgpack
from redis.asyncio import Redis

import chasquimq

POLL_S = 0.001
JOBS_PER_FILL = 1_000
Handler = Callable[[Any], Awaitable[Any]]


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
    """Until the stream is empty: from the first job's start, or from the worker's own.

    The worker's own counts where jobs must be promoted before they can start.
    """
    work = plan["work"]
    if work["delay_ms"]:
        await fill(plan)
    client = Redis.from_url(plan["url"])  # pyright: ignore[reportUnknownMemberType]  half typed
    all_ran = asyncio.Event()
    began: list[float] = []
    worker = chasquimq.Worker(
        plan["queue"], make_handler(plan, began, all_ran), redis_url=plan["url"],
        concurrency=plan["concurrency"], **options(work),
    )  # fmt: skip
    if needs_promotion(work):
        mark(began)
    running = asyncio.ensure_future(worker.run())
    await asyncio.wait(
        [running, asyncio.ensure_future(all_ran.wait())], return_when="FIRST_COMPLETED"
    )
    if running.done():
        running.result()
    # Only the server knows, and it does not tell unasked.
    while await client.xlen(plan["stream"]):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    return spent(*began) | {"jobs": plan["jobs"]}


def make_handler(plan: dict[str, Any], began: list[float], all_ran: asyncio.Event) -> Handler:
    """A handler that does nothing but count, and fails first when asked to."""
    left, fails_once, result = plan["jobs"], plan["work"]["fails_once"], plan["work"]["result"]

    async def handler(job: Any) -> str | None:
        nonlocal left
        if not began:
            mark(began)
        if fails_once and job.attempt == 0:
            raise ValueError("once")
        left -= 1
        if left == 0:
            all_ran.set()
        return result

    return handler


def options(work: dict[str, Any]) -> dict[str, Any]:
    """What is not left to the package's defaults."""
    return {
        "events_enabled": work["has_events"],
        "delayed_enabled": needs_promotion(work),
        "run_scheduler": False,
        "store_results": work["result"] is not None,
    }


def needs_promotion(work: dict[str, Any]) -> bool:
    return bool(work["delay_ms"] or work["fails_once"])


async def fill(plan: dict[str, Any]) -> None:
    """Add delayed jobs in bulk; nothing of this is measured."""
    producer = chasquimq.Producer(plan["url"], plan["queue"])
    payload: bytes = cast("Any", msgpack).packb(plan["payload"])
    for start in range(0, plan["jobs"], JOBS_PER_FILL):
        size = min(JOBS_PER_FILL, plan["jobs"] - start)
        await producer.add_in_bulk(plan["work"]["delay_ms"], [payload] * size)


def mark(began: list[float]) -> None:
    began[:] = time.perf_counter(), time.process_time()


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
    wanted = json.loads(sys.argv[1])
    # Whoever started this may be gone by then.
    signal.alarm(wanted["wait_s"])
    print(json.dumps(run(wanted)), flush=True)  # noqa: T201 - its only answer
    # The original may crash while the interpreter ends; the figures are out already.
    os._exit(0)
