"""Time and processor time of one stretch, the same for every side measured in this package."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from benchmarks.scenario import Plan
    from chasquimq.store.connection import Connection

_POLL_S = 0.001
# Where several processes share a queue each has to look while it works.
_SHARED_POLL_S = 0.005


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs took how long, and since when."""

    jobs: int
    began_s: float
    seconds: float
    cpu_seconds: float


class Stopwatch:
    """Runs from birth; processor time counts every thread of this process."""

    def __init__(self) -> None:
        self.began_s = time.perf_counter()
        self._began_cpu_s = time.process_time()

    def stop(self, jobs: int) -> Stretch:
        return Stretch(
            jobs=jobs,
            began_s=self.began_s,
            seconds=time.perf_counter() - self.began_s,
            cpu_seconds=time.process_time() - self._began_cpu_s,
        )


async def time_calls(
    call: Callable[[], Awaitable[object]],
    plan: Plan,
    on_start: Callable[[], None] = lambda: None,
) -> Stretch:
    """Callers side by side, each waiting for its own answer; one call each to warm up."""

    async def repeat(count: int) -> None:
        for _ in range(count):
            await call()

    await asyncio.gather(*(repeat(1) for _ in range(plan.in_flight)))
    on_start()
    watch = Stopwatch()
    await asyncio.gather(*(repeat(plan.calls_per_caller) for _ in range(plan.in_flight)))
    return watch.stop(plan.calls_per_caller * plan.in_flight * plan.batch)


async def until_empty(connection: Connection, plan: Plan) -> None:
    """Acked entries are deleted, so the length says that every ack was confirmed."""
    pause_s = _POLL_S if plan.processes == 1 else _SHARED_POLL_S
    # Only the server knows, and it does not tell unasked.
    while await connection.call("XLEN", plan.stream) > plan.left:  # noqa: ASYNC110
        await asyncio.sleep(pause_s)
