"""Open-loop arrivals and how long each job waited to start, for every package in the same way.

Jobs carry the moment at which they were to be added. It comes from a schedule that waits for
nobody, so a stall of producer, server or worker is in the waits of all jobs that it delayed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Add = Callable[[dict[str, str]], Awaitable[Any]]

# The field that carries the moment, in nanoseconds of the clock that all processes share.
MOMENT = "k0"
READY = "ready"
POLL_S = 0.005
_SEED = 1
_LEAD_S = 0.05


async def arrive(plan: dict[str, Any], add: Add) -> dict[str, Any]:
    """Add jobs by the plan's schedule; 0 a second: by so many callers as fast as answers come."""
    # The first one connects.
    await add(plan["payload"])
    cpu_s = time.process_time()
    if plan["arrivals_per_s"]:
        answer = await _open_loop(plan, add)
    else:
        answer = await _closed_loop(plan, add)
    return answer | {"cpu_seconds": time.process_time() - cpu_s}


async def _open_loop(plan: dict[str, Any], add: Add) -> dict[str, Any]:
    due_ns = schedule_ns(plan["arrivals_per_s"], plan["arrivals_s"])
    began_ns = time.perf_counter_ns() + int(_LEAD_S * 1e9)
    late_ns = array("q")
    adding: set[asyncio.Future[Any]] = set()
    for at_ns in due_ns:
        late_ns.append(await _until_ns(began_ns + at_ns))
        one = asyncio.ensure_future(add(plan["payload"] | {MOMENT: str(began_ns + at_ns)}))
        adding.add(one)
        one.add_done_callback(adding.discard)
    if adding:
        await asyncio.gather(*adding)
    seconds = (time.perf_counter_ns() - began_ns) / 1e9
    return {"jobs": len(due_ns), "seconds": seconds, "late_ms": spread_ms(late_ns)}


async def _until_ns(due_ns: int) -> int:
    """Wait for a moment; how late it became."""
    now_ns = time.perf_counter_ns()
    while now_ns < due_ns:
        await asyncio.sleep((due_ns - now_ns) / 1e9)
        now_ns = time.perf_counter_ns()
    return now_ns - due_ns


async def _closed_loop(plan: dict[str, Any], add: Add) -> dict[str, Any]:
    began_s = time.perf_counter()
    until_s = began_s + plan["arrivals_s"]

    async def repeat() -> int:
        count = 0
        while time.perf_counter() < until_s:
            await add(plan["payload"] | {MOMENT: str(time.perf_counter_ns())})
            count += 1
        return count

    jobs = sum(await asyncio.gather(*(repeat() for _ in range(plan["in_flight"]))))
    return {"jobs": jobs, "seconds": time.perf_counter() - began_s, "late_ms": spread_ms([0])}


def schedule_ns(per_s: float, seconds: float) -> array[int]:
    """Arrivals at random, as of many users who know nothing of each other; the same each time."""
    chance = random.Random(_SEED)
    times_ns = array("q")
    at_s = chance.expovariate(per_s)
    while at_s < seconds:
        times_ns.append(int(at_s * 1e9))
        at_s += chance.expovariate(per_s)
    return times_ns


class Starts:
    """What a handler notes when it starts, and the answer of a worker process about it."""

    def __init__(self) -> None:
        self._waits_ns = array("q")
        self._first_ns = self._last_ns = 0

    def started(self, payload: dict[str, str]) -> None:
        """Note a wait; a job without a moment only says that the worker is there."""
        moment, now_ns = payload[MOMENT], time.perf_counter_ns()
        if not moment.isdigit():
            say_ready()
            return
        self._first_ns = self._first_ns or now_ns
        self._last_ns = now_ns
        self._waits_ns.append(now_ns - int(moment))

    async def all_started(self) -> dict[str, Any]:
        """Wait until as many have started as stdin asks for; how long they waited."""
        wanted = int(await asyncio.to_thread(sys.stdin.readline))
        while len(self._waits_ns) < wanted:  # noqa: ASYNC110 - handlers have better to do
            await asyncio.sleep(POLL_S)
        seconds = (self._last_ns - self._first_ns) / 1e9
        return {"jobs": wanted, "seconds": seconds, "wait_ms": spread_ms(self._waits_ns)}


def say_ready() -> None:
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()


def spread_ms(values_ns: Sequence[int]) -> dict[str, float]:
    ranked = sorted(values_ns)
    last = len(ranked) - 1
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {name: ranked[round(last * share)] / 1e6 for name, share in shares.items()}
