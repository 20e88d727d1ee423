"""The real command in a process of its own: in a pipe, on a terminal, or running beside a test."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from chasquimq.cli import context, interrupts
from chasquimq.cli.app import main
from support.waiting import patience

PROGRAM = [sys.executable, "-m", "chasquimq"]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
ANSWER_S_MAX = 30.0
ROWS = 50
# Variables and the working directory belong to the process, so one command has them at a time.
_alone = threading.Lock()


@dataclass(frozen=True)
class Said:
    """What a command printed, and the code it ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a plain table, without its header."""
        return self.rows_with_header[1:]

    @property
    def rows_with_header(self) -> list[list[str]]:
        return [re.split(r"  +", line) for line in self.out.splitlines()]


class CommandHere:
    """Runs commands in the process of a test, which takes a tenth of the time of one of their own."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self._monkeypatch, self._capsys, self._folder = monkeypatch, capsys, folder

    def run(self, environ: dict[str, str], *args: str, stdin: bytes = b"") -> Said:
        """Run a command to its end with these variables alone; signals stay with the main thread."""
        with _alone, self._monkeypatch.context() as changed, ThreadPoolExecutor(1) as thread:
            # As in a process of its own, nothing is left of the command before.
            changed.setattr(context, "chosen", [])
            changed.setattr(interrupts, "_state", interrupts._State())
            for name in os.environ.keys() - environ.keys():
                changed.delenv(name)
            for name, value in environ.items():
                changed.setenv(name, value)
            changed.chdir(self._folder)
            changed.setattr("sys.stdin", TextIOWrapper(BytesIO(stdin), encoding="utf-8"))
            self._capsys.readouterr()
            code = thread.submit(main, args).result()
            said = self._capsys.readouterr()
        return Said(code, said.out, said.err)


class RunningCommand:
    """A command that goes on until it is told to end."""

    def __init__(
        self,
        args: tuple[str, ...],
        environ: dict[str, str],
        folder: Path,
        *,
        has_own_group: bool = False,
    ) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(
                [*PROGRAM, *args], env=environ, cwd=folder, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=has_own_group,
            )  # fmt: skip

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    async def until(self, condition, what: str, within_s: float = ANSWER_S_MAX) -> None:
        until_s = time.monotonic() + within_s * patience()
        while not condition():
            assert self.process.poll() is None, f"it left before {what}: {self.err}"
            assert time.monotonic() < until_s, f"no {what} within {within_s} s: {self.err}"
            await asyncio.sleep(0.02)

    async def until_said(self, words: str, count: int = 1) -> None:
        await self.until(lambda: (self.out + self.err).count(words) >= count, repr(words))

    async def ended(self, number: int | None = None) -> int:
        """The exit code, after that signal."""
        if number is not None:
            self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, ANSWER_S_MAX * patience())

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def run_on_a_terminal(
    command: list[str],
    columns: int,
    until: str | None,
    keys: bytes,
    environ: dict[str, str],
    folder: Path,
) -> Said:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    process = subprocess.Popen(
        command, env={"TERM": "xterm-256color"} | environ, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, keys)
    seen = b""
    while chunk := _chunk(ours):
        seen += chunk
        if until and until in seen.decode(errors="replace"):
            os.killpg(process.pid, signal.SIGINT)
            until = None
    os.close(ours)
    return Said(
        process.wait(ANSWER_S_MAX * patience()),
        seen.decode(errors="replace").replace("\r\n", "\n"),
        "",
    )


def _chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        # Linux says so when the last writer of a terminal is gone.
        return b""
