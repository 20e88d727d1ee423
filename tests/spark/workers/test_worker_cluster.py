"""Executors of a real cluster are killed again and again under handlers; every start is counted."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.command import RunningCommand
from support.noted_runs import HANDLERS, add_jobs, noted
from support.spark_cluster import Cluster, descendants, is_running
from support.waiting import eventually

SOURCES = Path(__file__).parents[3] / "src"
IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
JOBS = int(os.environ.get("CHASQUI_TEST_CLUSTER_JOBS", "100000"))
ADDED_AT_ONCE = 10_000
EXECUTORS = 2
CONCURRENCY = 20
KILL_EVERY_S = 10.0
RUN_S_MAX = 1_500.0
STOP_DEADLINE_S = 30.0
# What Spark itself needs to leave.
LEAVE_S_MAX = 30.0
CONF = {
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
pytestmark = [
    pytest.mark.timeout(RUN_S_MAX * 2),
    pytest.mark.skipif(not IS_BIG, reason="takes long; CHASQUI_TEST_BIG=1 runs it"),
]


@dataclass
class Kills:
    """How many executors died, and how many jobs the server had counted as theirs."""

    count: int = 0
    in_flight: int = 0


@pytest.fixture
def cluster(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder, workers=EXECUTORS)
    yield cluster
    cluster.close()


@pytest.fixture
def start(cluster, url, queue_name, tmp_path):
    """The command on that cluster; the folder of the handlers is no executor's."""
    environ = os.environ | {"CHASQUI_REDIS_URL": url}
    settings = [word for pair in CONF.items() for word in ("--conf", "=".join(pair))]
    started: list[RunningCommand] = []

    def begin(handler: str, *paths: Path) -> RunningCommand:
        command = (
            "spark", "worker", "--queue", queue_name, "--handler", handler, "--tasks", "2",
            "--lease", "5s", "--concurrency", str(CONCURRENCY), "--master", cluster.url, "--json",
            "--stop-deadline", f"{STOP_DEADLINE_S:.0f}s", *settings,
        )  # fmt: skip
        where = os.pathsep.join(map(str, [SOURCES, *paths]))
        started.append(RunningCommand(command, environ | {"PYTHONPATH": where}, tmp_path))
        return started[-1]

    yield begin
    for one in started:
        one.kill()


async def test_killed_executors_lose_no_job_and_repeat_only_what_they_held(
    cluster, start, queue, raw, tmp_path
):
    await asyncio.to_thread(shutil.copy, HANDLERS / "noting_handlers.py", tmp_path)
    running, lines = start("noting_handlers:note"), tmp_path / "lines"
    await running.until(lambda: '"alive": 2' in running.out, "two living tasks", RUN_S_MAX)
    began_s = time.monotonic()
    added = set()
    for _ in range(0, JOBS, ADDED_AT_ONCE):
        added |= await add_jobs(queue, min(JOBS, ADDED_AT_ONCE), lines, work_s=0.02)

    kills = await kill_until_empty(cluster, running, raw)
    seconds = time.monotonic() - began_s
    running.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(running.process.wait, STOP_DEADLINE_S + LEAVE_S_MAX)
    stopped_s = time.monotonic() - began_s - seconds

    starts, ends = noted(lines, "start"), noted(lines, "end")
    summary = json.loads(running.out.splitlines()[-1])
    again, cut_off = starts.total() - JOBS, starts.total() - ends.total()
    print(f"{JOBS:,} jobs in {seconds:.0f} s, {kills.count} kills with {kills.in_flight} jobs in "
          f"flight: {len(added - ends.keys())} lost, {again} starts too many, {cut_off} runs cut "
          f"off; stopped in {stopped_s:.1f} s; {summary}")  # fmt: skip
    assert (code, summary["is_drained"]) == (0, True)
    assert ends.keys() == added
    assert kills.count >= 2
    assert again <= kills.in_flight
    assert cut_off <= kills.count * CONCURRENCY
    assert (await raw.pending(), await raw.consumers()) == ([], [])


async def test_a_handler_that_only_the_driver_can_import_is_told_before_a_job_is_taken(
    start, queue, raw, tmp_path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    await asyncio.to_thread(
        shutil.copy, HANDLERS / "noting_handlers.py", elsewhere / "only_here.py"
    )
    await add_jobs(queue, 10, tmp_path / "lines")

    running = start("only_here:note", elsewhere)
    code = await asyncio.to_thread(running.process.wait, RUN_S_MAX)

    assert code == 1
    assert "executors must be able to import only_here:note" in running.err
    assert "--py-files" in running.err
    assert "Traceback" not in running.err
    assert await raw("XLEN", raw.keys.stream) == 10
    assert noted(tmp_path / "lines", "start").total() == 0


async def kill_until_empty(cluster: Cluster, running: RunningCommand, raw) -> Kills:
    """Kill an executor every ten seconds as long as there are jobs."""
    kills, until_s = Kills(), time.monotonic() + RUN_S_MAX
    next_s = time.monotonic() + KILL_EVERY_S
    while await raw("XLEN", raw.keys.stream):
        assert time.monotonic() < until_s, f"not done within {RUN_S_MAX} s: {running.out[-500:]}"
        if time.monotonic() > next_s and await kill_one(cluster, kills, raw):
            next_s = time.monotonic() + KILL_EVERY_S
        await asyncio.sleep(0.1)
    return kills


async def kill_one(cluster: Cluster, kills: Kills, raw) -> bool:
    """End the older executor as a power cut would; False: not both of them hold jobs yet.

    A restart may take longer than ten seconds on a busy machine, and somebody must get work done.
    """
    families = [(executor, descendants(executor)) for executor in cluster.executors()]
    holding = [(executor, pids) for executor, pids in families if await held(raw, pids)]
    if len(holding) < EXECUTORS:
        return False
    executor, pids = holding[0]
    os.kill(executor, signal.SIGKILL)
    in_flight = await held(raw, pids)
    await eventually(lambda: not any(map(is_running, pids)), within_s=60, what="its end")
    kills.count += 1
    # Its Python process notices a little later, and may have read some more until then.
    kills.in_flight += max(in_flight, await held(raw, pids))
    return True


async def held(raw, processes: list[int]) -> int:
    """How many jobs the server counts as theirs."""
    rows = await raw("XINFO", "CONSUMERS", raw.keys.stream, "default")
    facts = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    names = [f"-{pid}-spark." for pid in processes]
    return sum(
        one[b"pending"] for one in facts if any(name in one[b"name"].decode() for name in names)
    )
