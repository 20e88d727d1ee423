"""A server, a bad network and some workers, and the hand that does to them what the schedule says."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from chaos.schedule import Act
from chasquimq import Queue
from chasquimq.server.launch import SessionServer
from support.checker import Fault, Verdict
from support.clock_skew import skewed_environment
from support.faultproxy import FaultProxy
from support.processes import WorkerFleet, WorkerProcess
from support.raw import Raw
from support.trial import Trial

QUEUE = "chaos"
HANDLER = "fated"


class Stage:
    """Everything that may be hurt; `async with` sets it up and takes it down."""

    def __init__(
        self,
        server: SessionServer,
        folder: Path,
        *,
        workers: int,
        lease_ms: int,
        seed: int,
        is_cut: bool,
    ) -> None:
        """`is_cut` puts the proxy between everybody and the server, which has its price."""
        self._server = server
        self._folder = folder
        self._count = workers
        self._options = {"concurrency": 5, "claim_min_idle_ms": lease_ms}
        self._seed = seed
        self._is_cut = is_cut

    async def __aenter__(self) -> Self:
        self._server.start()
        self.proxy = FaultProxy(self._server.url)
        await self.proxy.accept()
        url = self.proxy.url if self._is_cut else self._server.url
        self._fleet = WorkerFleet(url, QUEUE, self._folder)
        self._queue = Queue(QUEUE, redis_url=url)
        self.trial = Trial(self._queue, self._server.url, self._folder, seed=self._seed)
        self._workers = [self._launch() for _ in range(self._count)]
        for target in range(self._count):
            await self._ready(target)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._fleet.close()
        self.trial.close()
        await self._queue.close()
        await self.proxy.__aexit__()
        await asyncio.to_thread(self._server.stop)

    async def hurt(self, act: Act) -> None:
        await getattr(self, f"_{act.kind}")(act)

    async def settle(self, within_s: float) -> Verdict:
        """Wait until all is done, let the workers leave, and judge."""
        await self.trial.drain(within_s)
        await self._fleet.stop_all()
        return await self.trial.verdict(more_faults=self._fleet.faults)

    async def _kill(self, act: Act) -> None:
        await self._ready(act.target)
        self._fleet.kill(self._workers[act.target])
        self._workers[act.target] = self._launch()

    async def _stop(self, act: Act) -> None:
        worker = await self._ready(act.target)
        self._fleet.freeze(worker)
        await asyncio.sleep(act.lasts_s)
        self._fleet.thaw(worker)

    async def _skew(self, act: Act) -> None:
        """The worker leaves by itself and comes back with another clock."""
        await self._fleet.stop(await self._ready(act.target), within_s=60)
        environment = skewed_environment(self._folder, int(act.how))
        self._workers[act.target] = self._launch(environment)

    async def _cut(self, act: Act) -> None:
        with self.trial.fault("cut"):
            self._begin_cut(act.how)
            await asyncio.sleep(act.lasts_s)
            if act.how in ("drop", "blackhole"):
                self.proxy.cut()
            self.proxy.calm()

    def _begin_cut(self, how: str) -> None:
        match how:
            case "torn":
                self.proxy.cut_after(200)
            case "drop":
                self.proxy.drop_replies()
            case "slices":
                self.proxy.slice_bytes = 1
            case "slow":
                self.proxy.latency_s, self.proxy.jitter_s = 0.01, 0.04
            case "blackhole":
                self.proxy.blackhole()
                self.proxy.cut()
            case _:
                getattr(self.proxy, how)()

    async def _restart(self, act: Act) -> None:
        from_s = time.monotonic()
        self._server.kill()
        await asyncio.sleep(act.lasts_s)
        await asyncio.to_thread(self._server.start)
        self.trial.faults.append(Fault("restart", from_s, time.monotonic()))

    async def _oom(self, act: Act) -> None:
        await self._tell("CONFIG", "SET", "maxmemory", "1")
        await asyncio.sleep(act.lasts_s)
        await self._tell("CONFIG", "SET", "maxmemory", "0")

    async def _flush(self, act: Act) -> None:
        await self._tell("SCRIPT", "FLUSH")

    async def _tell(self, *command: str) -> None:
        raw = await Raw.open(self._server.url, QUEUE)
        await raw(*command)
        await raw.close()

    async def _ready(self, target: int) -> WorkerProcess:
        worker = self._workers[target]
        # One that could not connect while the server was away has left, and is started anew.
        with suppress(AssertionError):
            await worker.until_ready()
        if not worker.is_alive:
            self._workers[target] = worker = self._launch()
            await worker.until_ready()
        return worker

    def _launch(self, environment: dict[str, str] | None = None) -> WorkerProcess:
        return self._fleet.launch(HANDLER, environment=environment, **self._options)
