"""A whole worker that takes one step at a time, so that a failing history can be shrunk."""

from __future__ import annotations

import asyncio
import select
import time
from dataclasses import dataclass, field

from chasquimq import Worker
from chasquimq.errors import StoreError
from chasquimq.settings import AbilitySettings, RetrySettings
from support.raw import Raw

HOUR_MS = 3_600_000
LEASE_MS = 30_000
BUDGET = 3
GROUP = "default"
_QUIET_TURNS = 4
_STEP_S_MAX = 5.0
_REPLY_S_MAX = 5.0
_HOUR_NS = HOUR_MS * 1_000_000


@dataclass
class Run:
    """A handler that has been entered; whoever sets its fate ends it."""

    worker: SteppedWorker
    delivery: object
    data: object
    fate: asyncio.Future = field(repr=False)

    @property
    def job_id(self) -> str:
        return self.delivery.job_id

    @property
    def generation(self) -> int:
        return (self.delivery.extras or {}).get("generation", 0)


class SteppedWorker:
    """The pipeline of a real Worker whose loops are called by hand; only handlers are tasks."""

    def __init__(
        self,
        url: str,
        queue: str,
        consumer: str,
        on_start,
        *,
        concurrency: int = 2,
        abilities: AbilitySettings | None = None,
    ) -> None:
        worker = Worker(
            queue, print, redis_url=url, consumer_id=consumer, concurrency=concurrency,
            read_block_ms=1, claim_min_idle_ms=LEASE_MS, store_results=True,
            history=False, abilities=abilities,
            retry=RetrySettings(
                max_attempts=BUDGET, initial_backoff_ms=HOUR_MS, max_backoff_ms=HOUR_MS, jitter_ms=0
            ),
        )  # fmt: skip
        self.consumer = consumer
        self.runs: list[Run] = []
        self._on_start = on_start
        policy = worker._handlers.policy
        self.pipeline = worker._builder().build(self._handle, concurrency, policy)
        self.store = self.pipeline.store
        self.upkeep = self.pipeline.upkeep

    async def open(self) -> SteppedWorker:
        await self.store.open()
        return self

    async def read(self) -> None:
        """One read, claims included, if there is room for it."""
        # On a server whose reads cannot claim, every read is preceded by a claim.
        self.pipeline.reader._claimer.hurry()
        if self.pipeline.in_flight.room() > 0:
            await self.pipeline.reader.run_once()
        await self.settle()

    async def end(self, run: Run, fate: object) -> None:
        """Let a handler return a value or raise an error."""
        if isinstance(fate, BaseException):
            run.fate.set_exception(fate)
        else:
            run.fate.set_result(fate)
        await self.settle()

    async def flush(self) -> None:
        """Settle every finished attempt."""
        for loop in self.pipeline.settlement.loops:
            if not loop.is_empty:
                await loop.run_once()
        await self.settle()

    def ending_ids(self) -> set[bytes]:
        """Entries whose runs ended here, and whose ends the server has not confirmed."""
        loops = self.pipeline.settlement.loops
        return {move.entry_id for loop in loops for move in (*loop._under_way, *loop.ready)}

    async def uncharge(self) -> None:
        await self.pipeline._delivery_counts.run_once()

    async def beat(self) -> None:
        self.pipeline.lease._beat()
        await self.settle()

    def grow_old(self) -> None:
        """What waits here has waited for long."""
        for delivery in self.pipeline.in_flight.waiting:
            delivery.held_since_ns -= _HOUR_NS

    async def promote(self) -> None:
        await self.upkeep.promoter._store.promote(page_max=100)

    async def agenda(self):
        return await self.upkeep.scheduler._store.agenda(100)

    async def fire(self, agenda) -> None:
        await self.upkeep.scheduler._fire_due(agenda)

    async def sweep(self) -> None:
        await self.upkeep.janitor.run_once()

    async def stop(self) -> None:
        """Leave politely and at once; handlers that still run are interrupted."""
        pipeline, now_s = self.pipeline, time.monotonic()
        for loop in pipeline.settlement.loops:
            pipeline.supervisor.start(loop)
        await pipeline.shutdown.run(lambda: now_s)
        self.pipeline.lease._store.close()

    async def crash(self) -> None:
        """Be gone between two commands; what was not sent is never sent."""
        self.pipeline.runners.hold_back("killed")
        for link in (self.store._reads, self.store._writes):
            if link.current is not None:
                link.current.abort("killed")
        supervisor = self.pipeline.supervisor
        supervisor.keep_only(set())
        tasks = list(supervisor.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.pipeline.lease._store.close()
        await self.store.close()
        self.runs.clear()

    async def settle(self) -> None:
        """Return when every handler that may start has been entered, and waits."""
        async with asyncio.timeout(_STEP_S_MAX):
            while not await self._is_quiet():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)

    async def _is_quiet(self) -> bool:
        runners = self.pipeline.runners
        for _ in range(_QUIET_TURNS):
            await asyncio.sleep(0)
        # One that has no start yet is being charged for it.
        is_started = all(delivery.started_ns for delivery in runners._running.values())
        return is_started and not runners._is_draining

    async def _handle(self, job) -> object:
        run = Run(self, job.delivery, job.data, asyncio.get_running_loop().create_future())
        self._on_start(run)
        if job.name == "quick":
            return job.data
        self.runs.append(run)
        try:
            return await run.fate
        finally:
            if run in self.runs:
                self.runs.remove(run)


async def losing_the_reply(link, act):
    """Do it, and break the connection when the server has answered but nobody has read it."""
    connection = link.current
    if connection is None:
        return await act
    connection._transport.pause_reading()
    task = asyncio.ensure_future(act)
    await _until_answered(connection._transport.get_extra_info("socket"), task)
    connection.abort("the reply was lost")
    return await task


async def _until_answered(sock, task: asyncio.Task) -> None:
    until_s = time.monotonic() + _REPLY_S_MAX
    while not task.done() and time.monotonic() < until_s:
        await asyncio.sleep(0)
        if select.select([sock], [], [], 0.001)[0]:
            return


async def expire_leases(raw: Raw, consumer: str) -> set[bytes]:
    """Let what this consumer holds look untouched for an hour; answers the entry ids."""
    try:
        rows = await raw("XPENDING", raw.keys.stream, GROUP, "-", "+", 1_000, consumer)
    except StoreError:
        return set()  # somebody deleted the group
    entry_ids = [row[0] for row in rows]
    if entry_ids:
        await raw(
            "XCLAIM", raw.keys.stream, GROUP, consumer, 0, *entry_ids, "IDLE", HOUR_MS, "JUSTID"
        )
    return set(entry_ids)
