"""Probes are answered while callers that say nothing, or next to nothing, hold on to the port."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from support.waiting import patience

pytestmark = pytest.mark.takes_turns

SILENT = 200
DRIPPING = 40
PROBES = 20
ANSWER_S_MAX = 1.0
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture
def listening(running, queue_name, tmp_path):
    """The port of a command that serves pages."""
    (tmp_path / "tasks.py").write_text("async def send(job):\n    return\n")

    async def port_of(kind: str) -> int:
        if kind == "worker":
            command = running("worker", "tasks:send", "--queue", queue_name, "--metrics-port", "0")
            await command.until_said("consuming")
            return int(re.findall(r"http://[\d.]+:(\d+)", command.err)[0])
        command = running("metrics", queue_name, "--port", "0")
        await command.until_said("serving http")
        return int(re.findall(r":(\d+)/metrics", command.err)[0])

    return port_of


async def call_forever(port: int, *, drips: bool) -> None:
    """Connect, say a byte a second or nothing, and come back when dropped."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await hold(reader, writer, drips=drips)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.5)


async def hold(reader, writer, *, drips: bool) -> None:
    sent = 0
    while not reader.at_eof():
        if drips:
            writer.write(REQUEST[sent : sent + 1])
            sent += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await reader.read(1)


@asynccontextmanager
async def crowd(port: int):
    """Callers that never finish a sentence, all of them connected once."""
    async with AsyncExitStack() as stack:
        tasks = [
            asyncio.create_task(call_forever(port, drips=number >= SILENT))
            for number in range(SILENT + DRIPPING)
        ]
        stack.callback(lambda: [task.cancel() for task in tasks])
        await asyncio.sleep(0.3)
        yield


async def probe(port: int, path: str) -> tuple[bytes, float]:
    begin_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(REQUEST.replace(b"/healthz", path.encode()))
        return (await reader.read()).split(b"\r\n")[0], time.monotonic() - begin_s
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("command", ["worker", "metrics"])
async def test_every_probe_is_answered_within_a_second(listening, command):
    port = await listening(command)
    async with crowd(port):
        for number in range(PROBES):
            path = ("/healthz", "/readyz", "/metrics")[number % 3]
            line, took_s = await probe(port, path)
            assert line == b"HTTP/1.1 200 OK", f"{path}, probe {number}"
            assert took_s < ANSWER_S_MAX * patience()
            await asyncio.sleep(0.1)
