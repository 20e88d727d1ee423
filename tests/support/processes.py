"""Worker processes that a test starts, kills and outlives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

from support.waiting import eventually

_PROGRAM = Path(__file__).with_name("fault_worker.py")
_TESTS = _PROGRAM.parents[1]
_SOURCES = _TESTS.parent / "src"
START_S_MAX = 20.0


class WorkerProcess:
    """One `fault_worker.py`, alone in its process."""

    def __init__(self, settings: dict) -> None:
        self.exited_s = 0.0
        self._program = subprocess.Popen(
            [sys.executable, str(_PROGRAM), json.dumps(settings)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{_SOURCES}{os.pathsep}{_TESTS}"},
        )
        os.set_blocking(self._program.stdout.fileno(), False)
        self._said = b""

    @property
    def pid(self) -> int:
        return self._program.pid

    @property
    def is_alive(self) -> bool:
        return self._program.poll() is None

    @property
    def rss_bytes(self) -> int:
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    async def until_ready(self) -> None:
        """Return when it consumes."""
        await eventually(self._is_ready, within_s=START_S_MAX, what="a worker process")

    def signal(self, number: int) -> float:
        """Send a signal; the answer is the moment it was sent."""
        self._program.send_signal(number)
        return time.monotonic()

    def kill(self) -> float:
        """End it as a power cut would; the answer is the moment it was dead."""
        self._program.kill()
        self._program.wait()
        self.exited_s = time.monotonic()
        return self.exited_s

    async def until_exit(self, within_s: float = 30.0) -> float:
        """Wait for its end; the answer is the moment it was seen."""
        await eventually(lambda: not self.is_alive, within_s=within_s, what="the exit of a worker")
        self.exited_s = time.monotonic()
        return self.exited_s

    def close(self) -> None:
        if self.is_alive:
            self.signal(signal.SIGCONT)
            self.kill()
        self._program.stdout.close()

    def _is_ready(self) -> bool:
        if not self.is_alive:
            raise AssertionError(f"a worker process left with code {self._program.returncode}")
        self._said += self._program.stdout.read() or b""
        return b"ready" in self._said


class WorkerFleet:
    """Starts processes that share a queue and a folder of journals."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self._settings = {"url": url, "queue": queue}
        self._folder = folder
        self._numbers = count()
        self.processes: list[WorkerProcess] = []
        self.killed: dict[int, float] = {}

    def launch(self, handler: str, **options) -> WorkerProcess:
        """Start a process and do not wait for it."""
        journal = str(self._folder / f"{next(self._numbers)}.journal")
        settings = self._settings | {"handler": handler, "journal": journal, "options": options}
        process = WorkerProcess(settings)
        self.processes.append(process)
        return process

    async def start(self, handler: str, **options) -> WorkerProcess:
        process = self.launch(handler, **options)
        await process.until_ready()
        return process

    def kill(self, process: WorkerProcess) -> None:
        self.killed[process.pid] = process.kill()

    def close(self) -> None:
        for process in self.processes:
            process.close()
