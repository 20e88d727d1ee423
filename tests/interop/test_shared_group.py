"""Workers of both packages in one group: they share the jobs, the locks, and each other's deaths."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from chasquimq import Queue, RepeatPattern
from support.raw import Raw
from support.waiting import eventually

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = Path(__file__).parent / "fleet" / "run_jobs.py"
PACKAGES = ("ours", "theirs")
JOBS = 400
WAIT_S_MAX = 40
EVERY_MS, WINDOWS = 600, 3
PLAN = f"""
import asyncio, os, sys
from chasquimq import Queue, RepeatPattern

async def main(url, name):
    queue = Queue(name, redis_url=url)
    every = RepeatPattern.every({EVERY_MS})
    await queue.upsert_repeatable_job("tick", 1, repeat=every, limit={WINDOWS})
    os._exit(0)

asyncio.run(main(*sys.argv[1:]))
"""

pytestmark = pytest.mark.timeout(240)


class Fleet:
    """Worker processes of either package; their consumers are named after it."""

    def __init__(self, pythons: dict[str, Path | str], url: str, queue: str, folder: Path) -> None:
        self._pythons = pythons
        self._where = [url, queue]
        self._numbers = count(1)
        self._processes: dict[str, subprocess.Popen] = {}
        self._log = folder / "errors"
        self.journal = folder / "journal"
        self.journal.touch()

    def start(self, package: str) -> str:
        """Begin another worker; the answer is its name."""
        name = f"{package}-{next(self._numbers)}"
        with self._log.open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self._pythons[package], PROGRAM, *self._where, name, self.journal],
                env={"PYTHONPATH": str(SOURCE)} if package == "ours" else {},
                stdout=log, stderr=log,
            )  # fmt: skip
        return name

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def runs(self) -> list[tuple[str, str, str]]:
        """Who ran which job, in order: worker, name and id."""
        whole, _, _ = self.journal.read_text().rpartition("\n")
        return [tuple(line.split(" ")) for line in whole.splitlines()]

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)


@pytest.fixture
def fleet(original_python, shared_url, queue_name, tmp_path):
    pythons = {"ours": sys.executable, "theirs": original_python}
    fleet = Fleet(pythons, shared_url, queue_name, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
async def shared_queue(shared_url, queue_name):
    async with Queue(queue_name, redis_url=shared_url) as queue:
        yield queue


@pytest.fixture
async def raw_look(shared_url, queue_name):
    raw = await Raw.open(shared_url, queue_name)
    yield raw
    await raw.close()


def package_of(worker: str | bytes) -> str:
    text = worker.decode() if isinstance(worker, bytes) else worker
    return text.partition("-")[0]


async def test_one_group_of_both_loses_no_job_when_workers_are_killed(
    fleet, shared_queue, raw_look
):
    first = [fleet.start(package) for package in PACKAGES * 2]
    jobs = await shared_queue.add_bulk([{"name": "n", "data": at} for at in range(JOBS)])
    added = {job.id for job in jobs}
    for at, name in enumerate(first[:2], start=1):
        await eventually(
            lambda at=at: len(fleet.runs()) > at * JOBS / 4, within_s=WAIT_S_MAX, what="some work"
        )
        fleet.kill(name)
        fleet.start(package_of(name))

    await eventually(lambda: _is_empty(raw_look), within_s=WAIT_S_MAX, what="an empty stream")

    runs = fleet.runs()
    assert {job_id for _, _, job_id in runs} == added
    assert {package_of(worker) for worker, _, _ in runs} == set(PACKAGES)
    assert await raw_look("XLEN", raw_look.keys.dlq) == 0
    # A killed worker of the original may have held a batch and what waits behind it.
    assert len(runs) - len(added) <= 2 * (5 + 5 + 10)


@pytest.mark.parametrize("leader", PACKAGES)
async def test_locks_and_plans_are_shared_and_pass_on(
    fleet, plan_by, shared_queue, raw_look, leader
):
    """The other one made the plan; the leader fires it and promotes, until it is killed."""
    raw, (other,) = raw_look, set(PACKAGES) - {leader}
    await plan_by(other)
    leading = fleet.start(leader)
    await eventually(fleet.runs, within_s=WAIT_S_MAX, what="the first fire")
    fleet.start(other)
    await eventually(lambda: _has_consumers(raw, 2), within_s=WAIT_S_MAX, what="two in the group")
    assert package_of(await raw("GET", raw.keys.promoter_lock)) == leader
    assert await raw("GET", raw.keys.scheduler_lock) is not None

    fleet.kill(leading)
    await shared_queue.add("late", 1, delay_ms=50)

    await eventually(lambda: _is_done(raw, fleet), within_s=WAIT_S_MAX, what="the rest of it")
    assert package_of(await raw("GET", raw.keys.promoter_lock)) == other
    fires = Counter(job_id for _, name, job_id in fleet.runs() if name == "tick")
    # One may be run again, by whoever takes it over from the killed one.
    assert len(fires) == WINDOWS
    assert fires.total() <= WINDOWS + 1


async def _is_done(raw: Raw, fleet: Fleet) -> bool:
    """Whether the plan is over, the delayed job has run, and nothing is left to run."""
    names = {name for _, name, _ in fleet.runs()}
    plans, left = await raw("ZCARD", raw.keys.repeat), await raw("XLEN", raw.keys.stream)
    return "late" in names and plans == left == 0


@pytest.fixture
def plan_by(original_python, shared_queue, shared_url, queue_name):
    """Let a package plan a repeatable job."""

    async def plan(package: str) -> None:
        if package == "ours":
            every = RepeatPattern.every(EVERY_MS)
            await shared_queue.upsert_repeatable_job("tick", 1, repeat=every, limit=WINDOWS)
            return
        command = [original_python, "-c", PLAN, shared_url, queue_name]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=WAIT_S_MAX)

    return plan


async def _is_empty(raw: Raw) -> bool:
    return await raw("XLEN", raw.keys.stream) == 0


async def _has_consumers(raw: Raw, wanted: int) -> bool:
    return len(await raw.consumers()) >= wanted
