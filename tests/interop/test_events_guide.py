"""The lines with which the original's guide follows a queue run as they are; so does its command."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chasquimq import Queue, UnrecoverableError, Worker
from support.command import RunningCommand
from support.waiting import eventually

SOURCE = Path(__file__).parents[2] / "src"
GUIDE = """
from chasquimq import QueueEvents

events = QueueEvents("emails")
async for ev in events:
    print(ev.name, ev.job_id, ev.fields)
"""
# A notebook's way to run lines that wait.
RUN = """
import ast, asyncio, sys
code = compile(open(sys.argv[1]).read(), "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(eval(code))
"""
# The guide's server listens where every Redis does; here it is elsewhere.
FORWARD = """
import asyncio, os
dial = asyncio.BaseEventLoop.create_connection
def dial_here(self, factory, host=None, port=None, **options):
    return dial(self, factory, host, int(os.environ["GUIDE_PORT"]) if port == 6379 else port, **options)
asyncio.BaseEventLoop.create_connection = dial_here
"""
HAPPENS = {
    "welcome": ["active", "completed"],
    "flaky": ["active", "failed", "retry-scheduled", "waiting", "active", "completed"],
    "bounced": ["active", "failed", "dlq"],
}
# The guide has chosen the name of its queue.
pytestmark = pytest.mark.own_server(port=0)


async def handler(job) -> None:
    if job.name == "flaky" and job.attempt == 0:
        raise ValueError("try again")
    if job.name == "bounced":
        raise UnrecoverableError("no such address")


async def work_off(url: str) -> dict[str, str]:
    """Add a job of each kind and run them all; their ids by name."""
    async with Queue("emails", redis_url=url) as queue:
        jobs = await queue.add_bulk([{"name": name, "data": 1, "backoff": 5} for name in HAPPENS])
    await Worker("emails", handler, redis_url=url, read_block_ms=50).run_until_idle()
    return {job.name: job.id for job in jobs}


@pytest.fixture
def queue_name() -> str:
    return "emails"


@pytest.fixture(params=["ours", "original"])
def python_and_path(request, tmp_path) -> tuple[Path, str]:
    """Who runs the guide's lines, and where it finds its modules."""
    if request.param == "ours":
        return Path(sys.executable), os.pathsep.join((str(tmp_path), str(SOURCE)))
    return request.getfixturevalue("original_python"), str(tmp_path)


@pytest.fixture
def guide(python_and_path, url, tmp_path):
    python, path = python_and_path
    (tmp_path / "guide.py").write_text(GUIDE)
    (tmp_path / "sitecustomize.py").write_text(FORWARD)
    environ = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "GUIDE_PORT": url.split(":")[-1]}
    program = subprocess.Popen(
        [python, "-c", RUN, "guide.py"], cwd=tmp_path, env=environ,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    yield program
    program.kill()
    program.wait()
    program.stdout.close()


async def test_the_lines_of_the_guide_tell_what_happens(guide, url, raw):
    await eventually(lambda: is_followed(raw), within_s=20, what="a reader of events")

    ids = await work_off(url)
    count = await raw("XLEN", raw.keys.events)
    async with asyncio.timeout(20):
        lines = [await asyncio.to_thread(guide.stdout.readline) for _ in range(count)]

    told = [line.split(" ", 2) for line in lines]
    happened = {
        name: [event for event, job_id, _ in told if job_id == ids[name]] for name in HAPPENS
    }
    assert happened == HAPPENS
    fields = [ast.literal_eval(fields) for _, _, fields in told]
    assert all(isinstance(one["ts"], int) for one in fields)
    assert {job_id for event, job_id, _ in told if event == "drained"} <= {"None"}


async def test_the_command_of_the_guide_tells_what_happens(url, raw, tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "CHASQUI_REDIS_URL": url}
    following = RunningCommand(("events", "emails"), environ, tmp_path)
    try:
        await eventually(lambda: is_followed(raw), within_s=20, what="a reader of events")
        ids = await work_off(url)
        count = await raw("XLEN", raw.keys.events)
        await following.until(lambda: following.out.count("\n") == count, f"{count} lines")
        code = await following.ended(signal.SIGINT)
    finally:
        following.kill()

    told = [line.split() for line in following.out.splitlines()]
    happened = {
        name: [words[2] for words in told if words[3] == f"id={ids[name]}"] for name in HAPPENS
    }
    assert happened == HAPPENS
    assert code == 130


async def is_followed(raw) -> bool:
    """Whether somebody waits for what comes next."""
    clients = (await raw("CLIENT", "LIST")).splitlines()
    return any(b" cmd=xread " in client and b" flags=b " in client for client in clients)
