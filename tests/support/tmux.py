"""A terminal that people use: a command inside tmux, and what is on its screen."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

from support.waiting import patience

ANSWER_S_MAX = 30.0
ROWS = 50
ENDED = "(the command has ended)"


class Tmux:
    """One server of tmux with one window; nothing is left of it after `close`."""

    def __init__(self, columns: int, environ: dict[str, str], folder: Path) -> None:
        self._columns = columns
        # The path of a socket may not be long.
        self._sockets = tempfile.TemporaryDirectory(prefix="tmux-")
        self._tmux = ["tmux", "-S", f"{self._sockets.name}/s", "-f", "/dev/null"]
        self._environ = environ
        self._folder = folder

    def start(self, command: list[str]) -> None:
        size = ["-x", str(self._columns), "-y", str(ROWS)]
        shell = f"{shlex.join(command)}; printf '%s\\n' {shlex.quote(ENDED)}; sleep 60"
        self._run("new-session", "-d", *size, shell)

    def press(self, key: str) -> None:
        self._run("send-keys", key)

    def lines(self) -> list[str]:
        """The screen; a line that did not fit and was broken is given as one."""
        shown = self._run("capture-pane", "-p", "-J")
        return [line.rstrip() for line in shown.split("\n") if line.strip()]

    async def until(self, words: str) -> list[str]:
        until_s = time.monotonic() + ANSWER_S_MAX * patience()
        while True:
            lines = self.lines()
            if any(words in line for line in lines):
                return lines
            assert time.monotonic() < until_s, f"no {words!r} on the screen: {lines}"
            await asyncio.sleep(0.02)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)
        self._sockets.cleanup()

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], env=self._environ, cwd=self._folder, capture_output=True,
            text=True, check=True, timeout=ANSWER_S_MAX,
        )  # fmt: skip
        return done.stdout
