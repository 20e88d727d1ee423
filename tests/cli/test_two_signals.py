"""An echo of a signal is no second one: wrappers forward what the terminal has sent already."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chasquimq.cli.pipeline.run import _until_signal as pipeline_until_signal
from chasquimq.cli.spark.worker import _until_signal as workers_until_signal
from chasquimq.model.stop_signals import ECHO_S
from support.waiting import eventually

TASKS = """
import asyncio


async def send(job):
    print("started", flush=True)
    await asyncio.sleep(job.data)
"""
LIBRARY = """
import asyncio, logging, os, sys

from chasquimq import Worker
from tasks import send

logging.basicConfig(level="INFO")
worker = Worker(sys.argv[1], send, redis_url=os.environ["CHASQUI_REDIS_URL"])
asyncio.run(worker.run(handle_signals=True))
"""
# How soon a wrapper forwards what the terminal sent; long enough for both to be two signals.
ECHO_AFTER_S = 0.02
pytestmark = pytest.mark.takes_turns


@pytest.fixture(autouse=True)
def tasks(tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "library.py").write_text(LIBRARY)


@pytest.fixture
async def library(environ, tmp_path, queue_name, raw):
    """A program that handles signals by `Worker.run(handle_signals=True)`, and has joined."""
    command = (sys.executable, "library.py", queue_name)
    process = await asyncio.create_subprocess_exec(
        *command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE
    )
    try:
        await eventually(lambda: has_joined(raw), within_s=20)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def has_joined(raw) -> bool:
    return bool(await raw("EXISTS", raw.keys.stream)) and bool(await raw.consumers())


async def send_twice(pid: int, number: int = signal.SIGINT) -> None:
    os.kill(pid, number)
    await asyncio.sleep(ECHO_AFTER_S)
    os.kill(pid, number)


def is_done(queue):
    async def look() -> bool:
        return (await queue.counts()).backlog == 0

    return look


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_two_signals_at_once_let_the_running_job_end(
    running, queue, queue_name, raw, processes
):
    words = ("--queue", queue_name, "--processes", processes)
    worker = running("worker", "tasks:send", *words)
    await worker.until_said("consuming", int(processes))
    await queue.add("send", 1.0)
    await worker.until_said("started")

    await send_twice(worker.process.pid)

    assert await worker.ended() == 130
    assert await raw.pending() == []
    assert (await queue.counts()).backlog == 0
    assert "at once" not in worker.err


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_after_an_echo_the_next_signal_still_ends_it_at_once(
    running, queue, queue_name, raw, processes
):
    words = ("--queue", queue_name, "--processes", processes)
    worker = running("worker", "tasks:send", *words)
    await worker.until_said("consuming", int(processes))
    await queue.add("send", 1_000.0)
    await worker.until_said("started")

    await send_twice(worker.process.pid)
    await asyncio.sleep(ECHO_S + 0.1)

    assert await worker.ended(signal.SIGINT) == 130
    assert [row[1] for row in await raw.pending()] == [b"returned"]


async def test_a_service_manager_that_signals_every_process_costs_no_attempt(
    running, queue, queue_name, raw
):
    """systemd with its usual KillMode does: a child hears it from there and from its parent."""
    fleet = running("worker", "tasks:send", "--queue", queue_name, "--processes", "2")
    await fleet.until_said("consuming", 2)
    await queue.add_bulk([{"name": "send", "data": 1.0}] * 4)
    await fleet.until_said("started", 4)

    for pid in [*children(fleet.process.pid), fleet.process.pid]:
        os.kill(pid, signal.SIGTERM)

    assert await fleet.ended() == 0
    assert await raw.pending() == []
    assert (await queue.counts()).backlog == 0


async def test_processes_whose_parent_is_killed_while_they_stop_let_their_jobs_end(
    running, queue, queue_name, raw
):
    fleet = running("worker", "tasks:send", "--queue", queue_name, "--processes", "2")
    await fleet.until_said("consuming", 2)
    await queue.add_bulk([{"name": "send", "data": 1.0}] * 4)
    await fleet.until_said("started", 4)

    fleet.process.send_signal(signal.SIGTERM)
    await fleet.until_said("stopping when running jobs have ended", 2)
    fleet.kill()

    await eventually(is_done(queue), within_s=10)
    assert await raw.pending() == []


async def test_a_library_worker_takes_an_echo_for_one_signal(library, queue, raw):
    await queue.add("send", 1.0)
    assert await asyncio.wait_for(library.stdout.readline(), 30) == b"started\n"

    await send_twice(library.pid, signal.SIGTERM)

    assert await asyncio.wait_for(library.wait(), 30) == 0
    assert await raw.pending() == []
    assert (await queue.counts()).backlog == 0


async def test_a_library_worker_gives_back_at_once_on_a_later_signal(library, queue, raw):
    await queue.add("send", 1_000.0)
    assert await asyncio.wait_for(library.stdout.readline(), 30) == b"started\n"

    await send_twice(library.pid, signal.SIGTERM)
    await asyncio.sleep(ECHO_S + 0.1)
    os.kill(library.pid, signal.SIGTERM)

    assert await asyncio.wait_for(library.wait(), 30) == 0
    assert [row[1] for row in await raw.pending()] == [b"returned"]


@pytest.mark.usefixtures("bare_environ")
async def test_workers_on_spark_are_cancelled_by_a_second_signal_and_by_no_echo():
    with workers_until_signal() as (stop, _):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        assert not stop.is_urgent

        await asyncio.sleep(ECHO_S)
        signal.raise_signal(signal.SIGINT)
        assert stop.is_urgent


def test_a_pipeline_drops_its_batch_on_a_second_signal_and_on_no_echo():
    with pipeline_until_signal() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()

        time.sleep(ECHO_S)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
