"""Programs of the kit, started as their containers start them."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.kit import DEPLOY, ROOT
from support.command import ANSWER_S_MAX, PROGRAM, RunningCommand

# As a worker logs it (with the paths of its pages), and as `chasqui metrics` says it.
PORT = re.compile(r"serving (?:/metrics, /healthz and /readyz at )?http://[\d.]+:(\d+)")


class RunningProgram(RunningCommand):
    """A program that says on which port it serves, and goes on until it is told to end."""

    def __init__(self, command: list[str], environ: dict[str, str], folder: Path) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(
                command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    async def port(self) -> int:
        await self.until(lambda: PORT.search(self.err), "port")
        return int(PORT.search(self.err)[1])


@pytest.fixture
def environ(url) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "CHASQUI_REDIS_URL": url}


@pytest.fixture
def start(environ, tmp_path):
    """Start programs that run beside the test; all are gone after it."""
    started: list[RunningProgram] = []

    def run(command: list[str], **variables: str) -> RunningProgram:
        folder = tmp_path / f"program-{len(started)}"
        folder.mkdir()
        started.append(RunningProgram(command, environ | variables, folder))
        return started[-1]

    yield run
    for one in started:
        one.kill()


@pytest.fixture
def chasqui(start):
    """A command of ours, which finds the handlers of the demo."""

    def run(*args: str, **variables: str) -> RunningProgram:
        paths = f"{ROOT / 'src'}{os.pathsep}{DEPLOY / 'docker/app'}"
        return start([*PROGRAM, *args], PYTHONPATH=paths, **variables)

    return run


@pytest.fixture
def get():
    """Status and body of a page on loopback."""

    async def ask(port: int, path: str = "/metrics") -> tuple[int, str]:
        return await asyncio.to_thread(_get, port, path)

    return ask


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
