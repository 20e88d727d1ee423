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

from support.checker import Fault
from support.waiting import eventually

_PROGRAM = Path(__file__).with_name("fault_worker.py")
_TESTS = _PROGRAM.parents[1]
_SOURCES = _TESTS.parent / "src"
START_S_MAX = 60.0


class WorkerProcess:
    """One `fault_worker.py`, alone in its process, perhaps with a failpoint or an environment."""

    program = _PROGRAM

    def __init__(
        self, settings: dict, environment: dict[str, str] | None = None, failpoint: str = ""
    ) -> None:
        self.exited_s = 0.0
        failpoints = ["-m", "chasquimq.testing.failpoints", failpoint] if failpoint else []
        self._program = subprocess.Popen(
            [sys.executable, *failpoints, str(self.program), json.dumps(settings)],
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": f"{_SOURCES}{os.pathsep}{_TESTS}",
                **(environment or {}),
            },
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
    def exit_code(self) -> int | None:
        return self._program.poll()

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
    """Starts processes that share a queue and a folder of journals, and remembers what it does."""

    process = WorkerProcess

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self._settings = {"url": url, "queue": queue}
        self._folder = folder
        self._numbers = count()
        self._frozen_s: dict[int, float] = {}
        self.processes: list[WorkerProcess] = []
        self.faults: list[Fault] = []

    def launch(
        self,
        handler: str,
        *,
        environment: dict[str, str] | None = None,
        failpoint: str = "",
        url: str | None = None,
        **options,
    ) -> WorkerProcess:
        """Start a process, perhaps on another way to the server, and do not wait for it."""
        journal = str(self._folder / f"{next(self._numbers)}.journal")
        settings = self._settings | {"handler": handler, "journal": journal, "options": options}
        settings |= {} if url is None else {"url": url}
        process = self.process(settings, environment, failpoint)
        self.processes.append(process)
        return process

    async def start(self, handler: str, **options) -> WorkerProcess:
        process = self.launch(handler, **options)
        await process.until_ready()
        return process

    def kill(self, process: WorkerProcess) -> None:
        self._killed(process, process.kill())

    async def until_dead(self, process: WorkerProcess, within_s: float = 30.0) -> None:
        """Wait for a process that ends itself, as abruptly as a kill would."""
        self._killed(process, await process.until_exit(within_s))

    def freeze(self, process: WorkerProcess) -> None:
        self._frozen_s[process.pid] = process.signal(signal.SIGSTOP)

    def thaw(self, process: WorkerProcess) -> None:
        from_s, to_s = self._frozen_s.pop(process.pid), process.signal(signal.SIGCONT)
        self.faults.append(Fault("stop", from_s, to_s, process.pid))

    async def stop(self, process: WorkerProcess, within_s: float = 30.0) -> None:
        """Ask it to stop and wait until it has gone."""
        asked_s = process.signal(signal.SIGTERM)
        self.faults.append(Fault("term", asked_s, await process.until_exit(within_s), process.pid))

    async def stop_all(self) -> None:
        """Let all leave by themselves, so that they write what they know."""
        living = [one for one in self.processes if one.is_alive]
        for process in living:
            await self.stop(process)

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def _killed(self, process: WorkerProcess, dead_s: float) -> None:
        self.faults.append(Fault("kill", dead_s, dead_s, process.pid))
