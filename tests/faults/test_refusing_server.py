"""A server that takes no writes, and a queue that is full: told by name, and nothing is lost."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from chasquimq import Queue
from chasquimq.errors import QueueFull, ServerRefused
from support import fault_worker
from support.trial import Trial
from support.waiting import eventually, patience
from support.workers import Workers

JOBS = 40
CAP = 20
RESUME_S = 2.0


class BrokenDisk:
    """Where the server wants to write its file there is a folder."""

    def __init__(self, server, raw) -> None:
        self._obstacle = server.data_dir / "dump.rdb"
        self._raw = raw

    async def fail(self) -> None:
        self._obstacle.unlink(missing_ok=True)
        self._obstacle.mkdir()
        await self._save("err")

    async def heal(self) -> None:
        self._obstacle.rmdir()
        await self._save("ok")

    async def _save(self, outcome: str) -> None:
        await self._raw("BGSAVE")
        expected = f"rdb_last_bgsave_status:{outcome}".encode()

        async def is_seen() -> bool:
            return expected in await self._raw("INFO", "persistence")

        await eventually(is_seen, what=f"a save that is {outcome}")


@pytest.mark.own_server(args=["--save", "3600", "1000000", "--dbfilename", "dump.rdb"])
async def test_a_disk_that_is_full_is_told_and_everything_goes_on_when_it_is_not(
    server, raw, trial, running_worker, kind
):
    gate = asyncio.Event()

    async def handler(job):
        await gate.wait()
        await fault_worker.fated.__wrapped__(job)

    running = await running_worker(trial.watched(handler), concurrency=JOBS)
    backoff = {"kind": "fixed", "delay_ms": 20, "jitter_ms": 0}
    fates = ["completes", "fails once", "gives up", "completes"] * (JOBS // 4)
    await trial.add_bulk([{"name": "n", "data": f, "backoff": backoff} for f in fates])
    await trial.add_bulk([{"name": "n", "data": "completes", "delay_ms": 200}] * JOBS)
    await eventually(lambda: running.worker.health().running == JOBS)

    disk = BrokenDisk(server, raw)
    await disk.fail()
    gate.set()
    with pytest.raises(ServerRefused, match="MISCONF"):
        await trial.add("n", "completes")
    await asyncio.sleep(0.5)
    assert running.worker.health().completed == 0
    await disk.heal()
    loop = asyncio.get_running_loop()
    healed_s = loop.time()
    await trial.drain(within_s=20)
    drained_s = loop.time() - healed_s
    await eventually(lambda: running.worker.health().unconfirmed == 0)

    verdict = await trial.verdict()
    print(f"{kind.label}: done {drained_s:.2f} s after the disk was well; {verdict.line}")
    verdict.demand()
    assert verdict.figures["jobs"] == 2 * JOBS
    assert verdict.figures["extra_starts"] == 0
    assert drained_s <= RESUME_S * patience()


@pytest.fixture
async def limited_worker(url, raw, queue_name):
    """Start a worker of a user of its own; `allow` changes what this user may do."""
    await raw("ACL", "SETUSER", queue_name, "on", ">canary", "~*", "&*", "+@all")
    parts = urlsplit(url)
    workers = Workers(
        queue_name, parts._replace(netloc=f"{queue_name}:canary@{parts.netloc}").geturl()
    )
    yield workers.start
    for running in workers.started:
        await running.stop()
    await raw("ACL", "DELUSER", queue_name)


@pytest.mark.parametrize("right", ["xack", "xackdel", "xadd", "xdel", "zadd", "hset", "set"])
async def test_a_right_taken_from_a_running_worker_costs_no_job_once_it_is_back(
    trial, raw, queue_name, limited_worker, kind, right
):
    gate = asyncio.Event()

    async def handler(job):
        await gate.wait()
        await fault_worker.fated.__wrapped__(job)

    if await raw("COMMAND", "INFO", right) == [None]:
        pytest.skip(f"this server does not know {right}")
    running = await limited_worker(trial.watched(handler), concurrency=JOBS, store_results=True)
    backoff = {"kind": "fixed", "delay_ms": 20, "jitter_ms": 0}
    fates = ["completes", "fails once", "gives up", "completes"] * (JOBS // 4)
    await trial.add_bulk([{"name": "n", "data": f, "backoff": backoff} for f in fates])
    await trial.add_bulk([{"name": "n", "data": "completes", "delay_ms": 200}] * JOBS)
    await eventually(lambda: running.worker.health().running == JOBS)

    await raw("ACL", "SETUSER", queue_name, f"-{right}")
    gate.set()
    await asyncio.sleep(1.0)
    await raw("ACL", "SETUSER", queue_name, "+@all")
    await trial.drain(within_s=20)
    await eventually(lambda: running.worker.health().unconfirmed == 0)

    verdict = await trial.verdict()
    print(f"{kind.label}: without {right}: {verdict.line}")
    verdict.demand()
    assert verdict.figures["jobs"] == 2 * JOBS
    assert verdict.figures["extra_starts"] == 0
    assert len(await raw.dlq()) == JOBS // 4


async def test_a_full_queue_refuses_by_name_and_takes_more_as_it_drains(
    url, queue_name, running_worker, tmp_path, kind
):
    refused = []
    async with Queue(queue_name, redis_url=url, max_stream_len=CAP) as queue:
        trial = Trial(queue, url, tmp_path)
        await running_worker(trial.watched(fault_worker.brief.__wrapped__), concurrency=2)
        for i in range(150):
            try:
                await trial.add("n", i)
            except QueueFull as full:
                refused.append(len(full.job_ids))
                await asyncio.sleep(0.01)
        await trial.drain()

        verdict = await trial.verdict()
        trial.close()
    print(f"{kind.label}: {len(refused)} of 150 adds refused; {verdict.line}")
    verdict.demand()
    assert set(refused) == {1}
    assert verdict.figures["jobs"] == verdict.figures["starts"] == 150 - len(refused)
