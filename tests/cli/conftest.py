"""Commands of ours on the servers of the tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chasquimq import Queue, UnrecoverableError, Worker
from chasquimq.cli.app import main
from support.command import (
    ANSWER_S_MAX,
    PROGRAM,
    CommandHere,
    RunningCommand,
    Said,
    run_on_a_terminal,
)
from support.waiting import patience

SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture
def bare_environ() -> dict[str, str]:
    """Where a command finds a server that is not there."""
    odd = ("NO_COLOR", "TERM", "COLUMNS", "LINES", "TMUX", "REDIS_URL")
    plain = {name: value for name, value in os.environ.items() if name not in odd}
    nobody = "redis://me:canary@127.0.0.1:1"
    return plain | {"PYTHONPATH": str(SOURCES), "CHASQUI_REDIS_URL": nobody}


@pytest.fixture
def environ(bare_environ, url) -> dict[str, str]:
    """Where the server of the test is the one that a command finds."""
    return bare_environ | {"CHASQUI_REDIS_URL": url}


@pytest.fixture
def program(environ, tmp_path):
    """Run a command to its end in a process of its own, with everything in pipes."""
    return partial(_run, environ, tmp_path)


@pytest.fixture
def bare_program(bare_environ, tmp_path):
    """The same where no server is needed, and so no kind of it."""
    return partial(_run, bare_environ, tmp_path)


@pytest.fixture
def here(monkeypatch, capsys, tmp_path):
    """Run a command with these variables in this process."""
    commands = CommandHere(monkeypatch, capsys, tmp_path)

    async def run(
        environ: dict[str, str], *args: str, stdin: bytes = b"", **variables: str
    ) -> Said:
        return await asyncio.to_thread(commands.run, environ | variables, *args, stdin=stdin)

    return run


@pytest.fixture
def chasqui(here, environ):
    """Run a command to its end, on the server of the test."""
    return partial(here, environ)


@pytest.fixture
def bare_chasqui(here, bare_environ):
    """The same where no server is needed, and so no kind of it."""
    return partial(here, bare_environ)


@pytest.fixture
def serverless_chasqui(here, bare_environ):
    """The same in a folder where no server is named."""
    named = "CHASQUI_REDIS_URL"
    return partial(here, {name: value for name, value in bare_environ.items() if name != named})


@pytest.fixture
def say(capsys, url):
    """Run a command in this process; what it raises and does not mean to is raised here."""

    async def run(*args: str, server: str = url) -> Said:
        capsys.readouterr()
        code = await asyncio.to_thread(main, [*args, "--redis-url", server])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def running(environ, tmp_path):
    """Start commands that run beside the test; all are gone after it."""
    started: list[RunningCommand] = []

    def start(*args: str, **variables: str) -> RunningCommand:
        folder = tmp_path / f"running-{len(started)}"
        folder.mkdir()
        for module in tmp_path.glob("*.py"):
            (folder / module.name).write_text(module.read_text())
        started.append(RunningCommand(args, environ | variables, folder))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def terminal(environ, tmp_path):
    """Run a command on a terminal; `until` is what must be shown before Ctrl+C is sent."""

    async def run(
        *args: str,
        columns: int = 80,
        until: str | None = None,
        keys: bytes = b"",
        **variables: str,
    ) -> Said:
        return await asyncio.to_thread(
            run_on_a_terminal,
            [*PROGRAM, *args],
            columns,
            until,
            keys,
            environ | variables,
            tmp_path,
        )

    return run


@pytest.fixture
def grave(url, queue_name):
    """Bury jobs as a worker does: each name has an error of its own."""

    async def handler(job) -> None:
        if job.name == "charge":
            raise UnrecoverableError(f"card {job.data} refused")
        raise ValueError(f"no answer from {job.name}")

    async def bury(*jobs: tuple[str, Any]) -> None:
        async with Queue(queue_name, redis_url=url) as queue:
            await queue.add_bulk(
                [{"name": name, "data": data, "attempts": 1} for name, data in jobs]
            )
        await Worker(queue_name, handler, redis_url=url).run_until_idle()

    return bury


async def _run(
    environ: dict[str, str], folder: Path, *args: str, stdin: bytes = b"", **variables: str
) -> Said:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, *args, env=environ | variables, cwd=folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(ANSWER_S_MAX * patience()):
        out, err = await process.communicate(stdin)
    assert b"Traceback" not in err, err.decode()
    return Said(process.returncode or 0, out.decode(), err.decode())
