"""Importing the package is cheap and brings no client, no command line and no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

IMPORT = "import chasquimq"
TURNS_MAX = 40
TERMINAL_PACKAGES = ("click", "rich", "markdown_it", "pygments")
HEAVY = ("redis", "hiredis", "rich", "click", "pyspark", "uvloop", "prometheus_client")


def run(code: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, timeout=30,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    return answer.stdout.strip()


def taken_ms(code: str) -> float:
    started_s = time.perf_counter()
    run(code)
    return (time.perf_counter() - started_s) * 1000


def test_importing_the_package_loads_nothing_heavy():
    loaded = run(f"import sys, chasquimq; print([m for m in {HEAVY!r} if m in sys.modules])")

    assert loaded == "[]"


def test_importing_the_package_costs_less_than_120_ms_beyond_bare_python():
    # In turns, the quickest of each: it takes some to catch one that no other test disturbs.
    bare_ms = import_ms = float("inf")
    for _ in range(TURNS_MAX):
        bare_ms, import_ms = min(bare_ms, taken_ms("pass")), min(import_ms, taken_ms(IMPORT))
        if import_ms - bare_ms < 120:
            return
    pytest.fail(f"{import_ms - bare_ms:.0f} ms")


@pytest.mark.parametrize("name", ["pyspark", "rich", "click"])
def test_a_queue_and_a_worker_need_none_of_the_doors(name):
    loaded = run(f"import sys; from chasquimq import Queue, Worker; print({name!r} in sys.modules)")

    assert loaded == "False"


PROGRAM = """
import asyncio, sys
from chasquimq import Queue, QueueEvents, Upkeep, Worker

async def double(job):
    return job.data * 2

async def main(url, name):
    async with Queue(name, redis_url=url) as queue, QueueEvents(name, redis_url=url):
        job = await queue.add("double", 21)
        worker = Worker(name, double, redis_url=url, store_results=True, events="full", history=True)
        running = asyncio.ensure_future(worker.run(handle_signals=True))
        assert await job.wait_for_result(timeout=20) == 42
        await queue.counts()
        await worker.close()
        await running

asyncio.run(main(*sys.argv[1:3]))
print([name for name in sys.argv[3:] if name in sys.modules])
"""


def test_a_program_that_runs_a_worker_loads_nothing_of_the_command_line(url, queue_name):
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, queue_name, *TERMINAL_PACKAGES, "chasquimq.cli"],
        capture_output=True, text=True, check=False, timeout=60,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip

    assert (answer.stdout, answer.stderr) == ("[]\n", "")
