"""A program without any logging set-up: warnings reach stderr, and nothing below them does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from chasquimq import blocking
from support.waiting import patience

SOURCE = Path(__file__).parents[2] / "src"
WORKER = """
import asyncio, sys
from chasquimq import UnrecoverableError, Worker

async def handler(job):
    print(f"run {job.data}", flush=True)
    if job.data == "refused":
        raise UnrecoverableError("card refused")
    if job.data == "held":
        await asyncio.sleep(60)

worker = Worker(sys.argv[1], handler, redis_url=sys.argv[2], claim_min_idle_ms=1_000)
asyncio.run(worker.run(handle_signals=True))
"""
# A server that may be killed.
pytestmark = [pytest.mark.own_server, pytest.mark.takes_turns]


@contextmanager
def program(tmp_path, *words: str):
    """One process of the program above; its stderr goes to a file."""
    err = tmp_path / f"{time.monotonic_ns()}.err"
    with err.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *words], stdout=subprocess.PIPE, stderr=file,
            env=os.environ | {"PYTHONPATH": str(SOURCE)}, text=True,
        )  # fmt: skip
    try:
        yield process, err
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def said(err: Path, words: str) -> str:
    """The line of the file with these words, once it is there."""
    until_s = time.monotonic() + 30 * patience()
    while time.monotonic() < until_s:
        for line in err.read_text().splitlines():
            if words in line:
                return line
        time.sleep(0.05)
    raise AssertionError(f"{words!r} must be said, found: {err.read_text()}")


def test_a_buried_job_is_told(url, queue_name, tmp_path):
    with program(tmp_path, queue_name, url) as (process, err):
        with blocking.Queue(queue_name, redis_url=url) as queue:
            job = queue.add("pay", "refused")
        line = said(err, "is buried as")

        process.send_signal(signal.SIGTERM)
        process.wait(20 * patience())
        assert line.startswith(f"job {job.id} (pay) of queue {queue_name} is buried as")
        assert "consuming queue" not in err.read_text()


def test_jobs_that_are_taken_over_are_told(url, queue_name, tmp_path):
    with (
        blocking.Queue(queue_name, redis_url=url) as queue,
        program(tmp_path, queue_name, url) as (dying, _),
    ):
        queue.add("report", "held")
        assert dying.stdout.readline() == "run held\n"
        dying.kill()
        with program(tmp_path, queue_name, url) as (_, err):
            assert said(err, "took over").startswith(f"took over 1 job of queue {queue_name} from")


@pytest.mark.own_server(port=0)
def test_an_outage_and_its_end_are_told(server, queue_name, tmp_path):
    with program(tmp_path, queue_name, server.url) as (run, err):
        with blocking.Queue(queue_name, redis_url=server.url) as queue:
            queue.add("send", "well")
        assert run.stdout.readline() == "run well\n"
        server.kill()
        said(err, "does not answer, dialling again")
        server.start()
        assert said(err, "connected to").endswith(" s")
