"""Many jobs through few workers: what they and the server hold must not grow with the number.

    python -m tests.chaos.soak --jobs 1000000 --server valkey

Looks after a tenth of the jobs and after all of them. The exit code is 0 when all is flat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS.parent / "src"), str(_TESTS)]

from chasquimq import Queue, RepeatPattern  # noqa: E402  the path is set above
from chasquimq.server.launch import SessionServer  # noqa: E402
from support.journal import EXIT, read_journals  # noqa: E402
from support.processes import WorkerFleet  # noqa: E402
from support.raw import Raw  # noqa: E402
from support.waiting import eventually  # noqa: E402

MIB = 1024 * 1024
QUEUE = "soak"
_WORKERS = 4
# Renewals dial when the first is due, which must be long before the first look.
_LEASE_MS = 1_000
_BULK = 1_000
_BACKLOG_MAX = 20_000
_RSS_GROWTH_MAX = 2 * MIB
_BACKOFF = {"kind": "fixed", "delay_ms": 50, "jitter_ms": 0}
_POISON_SHARE, _DELAYED_SHARE, _FAILING_SHARE = 0.001, 0.05, 0.05


@dataclass(frozen=True)
class Look:
    """What is held at one moment, with nothing left to do."""

    rss_bytes: list[int]
    fds: list[int]
    threads: list[int]
    connections: int
    consumers: int
    # But for those that leave by themselves.
    keys: int

    def __str__(self) -> str:
        rss = "/".join(f"{size / MIB:.1f}" for size in self.rss_bytes)
        return (
            f"RSS {rss} MiB, fds {self.fds}, threads {self.threads}, "
            f"{self.connections} connections, {self.consumers} consumers, {self.keys} keys"
        )

    def growth(self, later: Look) -> list[str]:
        """What has grown, in words."""
        rss = max(b - a for a, b in zip(self.rss_bytes, later.rss_bytes, strict=True))
        found = [f"memory by {rss / MIB:.1f} MiB"] if rss >= _RSS_GROWTH_MAX else []
        for name in ("fds", "threads", "connections", "consumers", "keys"):
            before, after = getattr(self, name), getattr(later, name)
            if after > before:
                found.append(f"{name} from {before} to {after}")
        return found


class Soak:
    """A queue, its workers, and what went through them."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._fleet = WorkerFleet(url, QUEUE, folder)
        self._dice = random.Random(1)
        self.added = self.poisoned = 0

    async def run(self, jobs: int) -> tuple[Look, Look]:
        self._raw = await Raw.open(self._url, QUEUE)
        async with Queue(QUEUE, redis_url=self._url) as self._queue:
            await self._start()
            early = await self._look_after(jobs // 10)
            late = await self._look_after(jobs)
        await self._fleet.stop_all()
        await self._raw.close()
        return early, late

    def totals(self) -> dict[str, int]:
        """What the workers say that they did."""
        exits = [json.loads(one.extra) for one in read_journals(self._folder) if one.event == EXIT]
        return {
            name: sum(one[name] for one in exits) for name in ("completed", "retried", "buried")
        }

    def close(self) -> None:
        self._fleet.close()

    async def _start(self) -> None:
        for worker in [
            self._fleet.launch("soaks", claim_min_idle_ms=_LEASE_MS) for _ in range(_WORKERS)
        ]:
            await worker.until_ready()
        for seconds in (1, 2):
            every = RepeatPattern.every(seconds * 1_000)
            await self._queue.upsert_repeatable_job(f"tick-{seconds}", 0, repeat=every)

    async def _look_after(self, jobs: int) -> Look:
        while self.added < jobs:
            if (await self._queue.counts()).backlog > _BACKLOG_MAX:
                await asyncio.sleep(0.02)
                continue
            await self._queue.add_bulk([self._job() for _ in range(_BULK)])
            self.added += _BULK
            if self._dice.random() < _POISON_SHARE * _BULK:
                await self._raw("XADD", self._raw.keys.stream, "*", "d", "poison")
                self.poisoned += 1
        await eventually(self._is_done, within_s=600, what="an empty queue")
        return await self._look()

    def _job(self) -> dict[str, Any]:
        job: dict[str, Any] = {"name": "n", "data": "completes", "backoff": _BACKOFF}
        luck = self._dice.random()
        if luck < _FAILING_SHARE:
            job["data"] = "fails once"
        elif luck < _FAILING_SHARE + _DELAYED_SHARE:
            job["delay_ms"] = self._dice.randrange(10, 500)
        return job

    async def _is_done(self) -> bool:
        return (await self._queue.counts()).backlog == 0

    async def _look(self) -> Look:
        pids = [worker.pid for worker in self._fleet.processes]
        clients = (await self._raw("CLIENT", "LIST")).splitlines()
        return Look(
            rss_bytes=[worker.rss_bytes for worker in self._fleet.processes],
            fds=[_entries(pid, "fd") for pid in pids],
            threads=[_entries(pid, "task") for pid in pids],
            connections=len(clients),
            consumers=len(await self._raw.consumers()),
            keys=await self._lasting_keys(),
        )

    async def _lasting_keys(self) -> int:
        found, cursor = set(), b"0"
        while True:
            cursor, keys = await self._raw("SCAN", cursor, "COUNT", 5_000)
            found |= {key for key in keys if await self._raw("TTL", key) == -1}
            if cursor == b"0":
                return len(found)


def _entries(pid: int, folder: str) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/{folder}").iterdir())


async def soak(jobs: int, server: SessionServer, folder: Path) -> int:
    run = Soak(server.url, folder)
    begun_s = time.monotonic()
    try:
        early, late = await run.run(jobs)
    finally:
        run.close()
    print(f"after {jobs // 10} jobs: {early}\nafter {jobs} jobs: {late}")
    grown, totals = early.growth(late), run.totals()
    if totals["completed"] < run.added or totals["buried"] != run.poisoned:
        grown.append(f"the difference: {run.added} added, {run.poisoned} poisoned, {totals}")
    said = f"FAIL: grown {', '.join(grown)}" if grown else "PASS"
    print(f"{said}: {run.added} jobs, {totals}, {time.monotonic() - begun_s:.0f} s")
    return 1 if grown else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--server", default="valkey", help="valkey, or the path of a binary")
    options = parser.parse_args()
    binary = None if options.server == "valkey" else Path(options.server)
    scratch = tempfile.TemporaryDirectory(prefix="chasqui-soak-")
    with scratch as folder, SessionServer(binary=binary) as server:
        return asyncio.run(soak(options.jobs, server, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
