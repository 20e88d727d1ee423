"""Executors of a real cluster are killed again and again under handlers; every start is counted."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from support.command import RunningCommand
from support.noted_runs import HANDLERS, add_jobs, noted
from support.spark_cluster import Cluster

SOURCES = Path(__file__).parents[3] / "src"
IS_BIG = os.environ.get("CHASQUI_TEST_BIG") == "1"
JOBS = 20_000
CONCURRENCY = 20
KILL_EVERY_S = 10.0
KILLS_MAX = 10
RUN_S_MAX = 420.0
CONF = {
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
pytestmark = [
    pytest.mark.timeout(RUN_S_MAX * 2),
    pytest.mark.skipif(not IS_BIG, reason="takes long; CHASQUI_TEST_BIG=1 runs it"),
]


@pytest.fixture
def cluster(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder, workers=2)
    yield cluster
    cluster.close()


@pytest.fixture
def running(cluster, url, queue_name, tmp_path):
    """The command on that cluster; the folder of the handlers is no executor's."""
    shutil.copy(HANDLERS / "noting_handlers.py", tmp_path)
    environ = os.environ | {"CHASQUI_REDIS_URL": url, "PYTHONPATH": str(SOURCES)}
    settings = [word for pair in CONF.items() for word in ("--conf", "=".join(pair))]
    command = RunningCommand(
        ("spark", "worker", "--queue", queue_name, "--handler", "noting_handlers:note", "--tasks",
         "2", "--lease", "5s", "--concurrency", str(CONCURRENCY), "--master", cluster.url, "--json",
         *settings),
        environ, tmp_path,
    )  # fmt: skip
    yield command
    command.kill()


async def test_killed_executors_lose_no_job_and_repeat_only_what_they_held(
    cluster, running, queue, raw, tmp_path
):
    lines = tmp_path / "lines"
    await running.until(lambda: '"alive": 2' in running.out, "two living tasks", RUN_S_MAX)
    began_s = time.monotonic()
    added = await add_jobs(queue, JOBS, lines, work_s=0.05)

    kills = await kill_until(cluster, running, lambda: noted(lines, "end").keys() == added)
    seconds = time.monotonic() - began_s
    running.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(running.process.wait, 120)

    ends, summary = noted(lines, "end"), json.loads(running.out.splitlines()[-1])
    cut_off, repeated = noted(lines, "start").total() - ends.total(), ends.total() - JOBS
    print(f"{JOBS:,} jobs in {seconds:.0f} s, {kills} kills: {cut_off} runs cut off, {repeated} "
          f"jobs ended twice; {summary}")  # fmt: skip
    assert (code, summary["is_drained"]) == (0, True)
    assert kills >= 2
    assert cut_off <= kills * CONCURRENCY
    # What had ended a moment before, without its ack.
    assert repeated <= kills * CONCURRENCY
    assert await raw.pending() == []


async def kill_until(cluster: Cluster, running: RunningCommand, is_done) -> int:
    """Kill an executor every ten seconds, when all tasks run again; the answer is how many died."""
    kills, next_s, until_s = 0, 0.0, time.monotonic() + RUN_S_MAX
    while not is_done():
        assert time.monotonic() < until_s, f"not done within {RUN_S_MAX} s: {running.out[-500:]}"
        is_due = kills < KILLS_MAX and time.monotonic() > next_s
        if is_due and alive(running) == 2 and cluster.kill_one():
            kills, next_s = kills + 1, time.monotonic() + KILL_EVERY_S
        await asyncio.sleep(0.5)
    return kills


def alive(running: RunningCommand) -> int:
    return json.loads(running.out.split("\n")[-2])["alive"]
