"""The server is killed again and again under load: what it had promised to keep is there."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from chasquimq import Queue
from chasquimq.errors import StoreError
from support.checker import Fault
from support.journal import START, Line, as_line
from support.waiting import eventually, patience

IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
RESTARTS = 300 if IS_BIG else 3
# Hundreds of restarts need no more jobs each than a few do.
PAUSE_S = 0.1 if IS_BIG else 0.02
# More would still be waiting when the last restart is over.
BACKLOG_MAX = 400
LEASE_MS = 1000
RESUME_S = 2.0
# With everysec, a killed server forgets what it did since its last look at the disk.
FORGETS_S = {"always": 0.0, "everysec": 2.0}


@pytest.fixture
def server(start_server, aof):
    return start_server(aof=aof)


@pytest.fixture
async def queue(url, queue_name, durability):
    async with Queue(queue_name, redis_url=url, durability=durability) as queue:
        yield queue


@pytest.mark.timeout(3_600 if IS_BIG else 180)
@pytest.mark.parametrize(
    ("aof", "durability", "may_lose"),
    [
        ("always", "server", False),
        pytest.param("everysec", "fsync", False, marks=pytest.mark.needs("WAITAOF")),
        ("everysec", "server", True),
    ],
    ids=["always", "everysec with fsync", "everysec"],
)
async def test_a_killed_server_keeps_what_its_class_of_durability_promises(
    server, trial, fleet, tmp_path, kind, aof, durability, may_lose
):
    await fleet.start("brief", concurrency=4, claim_min_idle_ms=LEASE_MS)
    is_over = asyncio.Event()
    adding = asyncio.create_task(add_until(is_over, trial))
    back_s, starts = [], Starts(tmp_path)

    for _ in range(RESTARTS):
        known = len(trial.acknowledged)
        await eventually(lambda known=known: len(trial.acknowledged) > known + 20, within_s=20)
        died_s = time.monotonic()
        await asyncio.to_thread(server.restart)
        up_s = time.monotonic()
        trial.faults.append(Fault("restart", died_s - FORGETS_S[aof], up_s))
        started = await eventually(lambda up_s=up_s: starts.first_after(up_s), within_s=15)
        back_s.append(started.t_s - up_s)
    is_over.set()
    await asyncio.wait_for(adding, 60)
    await trial.drain(within_s=40)
    await fleet.stop_all()

    verdict = await trial.verdict(more_faults=fleet.faults)
    lost = len(verdict.broken.get("lost", ()))
    print(
        f"{kind.label}, {aof}, {durability}: {lost} lost in {RESTARTS} restarts, "
        f"back after {max(back_s):.2f} s; {verdict.line}"
    )
    if may_lose:
        verdict.broken.pop("lost", None)
    verdict.demand()
    assert verdict.figures["jobs"] >= RESTARTS * 20
    assert max(back_s) <= RESUME_S * patience()


async def add_until(is_over, trial):
    while not is_over.is_set():
        await trial.add_bulk([{"name": "n", "data": i} for i in range(20)])
        await eventually(lambda: has_room(trial), within_s=60, what="room for more jobs")
        await asyncio.sleep(PAUSE_S)


async def has_room(trial) -> bool:
    try:
        return (await trial.queue.counts()).backlog < BACKLOG_MAX
    except StoreError:
        return False


class Starts:
    """Reads what journals say of starts, each line once."""

    def __init__(self, folder) -> None:
        self._folder = folder
        self._read_to: dict[Path, int] = {}

    def first_after(self, since_s: float) -> Line | None:
        lines = [line for path in self._folder.glob("*.journal") for line in self._more_of(path)]
        late = [line for line in lines if line.event == START and line.t_s > since_s]
        return min(late, key=lambda line: line.t_s, default=None)

    def _more_of(self, path: Path) -> list[Line]:
        with path.open("rb") as journal:
            journal.seek(self._read_to.get(path, 0))
            read = journal.read()
        whole = read[: read.rfind(b"\n") + 1]
        self._read_to[path] = self._read_to.get(path, 0) + len(whole)
        return [as_line(one.decode()) for one in whole.splitlines()]
