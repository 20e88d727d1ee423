"""A worker whose output nobody reads, or can read, goes on: its jobs, its probes and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess

import pytest

from support.command import PROGRAM
from support.waiting import eventually, patience

pytestmark = pytest.mark.takes_turns

# Each job fails in a way of its own, with more words than a pipe holds.
TASKS = """
async def send(job):
    raise type(f"Odd{job.data}", (Exception,), {})("x" * 200_000)
"""
JOBS = 20
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def worker(environ, tmp_path, queue_name, port):
    """Start a worker with such streams."""
    (tmp_path / "tasks.py").write_text(TASKS)
    command = [*PROGRAM, "worker", "tasks:send", "--queue", queue_name, "--max-attempts", "1",
               "--metrics-port", str(port)]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []

    def start(*command_ahead: str, **streams: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*command_ahead, *command], env=environ, cwd=tmp_path, **streams)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


async def is_healthy(port: int) -> bool:
    try:
        async with asyncio.timeout(patience()):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            answer = await reader.read(100)
            writer.close()
    except (OSError, TimeoutError):
        return False
    return answer.startswith(b"HTTP/1.1 200")


async def assert_works(process, raw, queue, port: int) -> None:
    await queue.add_bulk([{"name": "mail", "data": number} for number in range(JOBS)])

    async def are_all_buried() -> bool:
        return await raw("XLEN", raw.keys.dlq) == JOBS

    await eventually(are_all_buried, what="all jobs buried")
    assert await is_healthy(port)
    os.kill(process.pid, signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 15) == 0


async def test_a_log_that_nobody_reads_holds_up_nothing(worker, raw, queue, port):
    reading, writing = os.pipe()
    process = worker(stderr=writing)
    os.close(writing)
    try:
        await assert_works(process, raw, queue, port)
    finally:
        os.close(reading)


async def test_lines_that_were_lost_are_counted_when_the_log_is_read_again(
    worker, raw, queue, port
):
    process = worker(stderr=subprocess.PIPE)
    await queue.add_bulk([{"name": "mail", "data": number} for number in range(JOBS)])

    async def are_all_buried() -> bool:
        return await raw("XLEN", raw.keys.dlq) == JOBS

    await eventually(are_all_buried, what="all jobs buried")
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    while process.stderr.read(65_536):
        pass
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 15) == 0

    assert b"lines of this log were lost" in process.stderr.read()


async def test_closed_streams_stop_no_worker(worker, raw, queue, port):
    process = worker("/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")

    await assert_works(process, raw, queue, port)
