"""Starts worker programs, reads their journals, and ends whatever is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("worker_program.py")
SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Line:
    """One event of a journal; times are of the machine's monotonic clock."""

    at_s: float
    pid: int
    event: str
    job_id: str
    attempt: int
    was_redelivered: bool


class WorkerProcesses:
    """The worker processes of one test."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self._url = url
        self._queue = queue
        self._folder = folder
        self._started: list[subprocess.Popen] = []

    def start(self, handler: str, seconds: float, **options) -> subprocess.Popen:
        plan = {
            "url": self._url, "queue": self._queue, "handler": handler, "seconds": seconds,
            "journal": str(self._folder / f"{len(self._started)}.journal"), "options": options,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(plan)],
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
        )
        self._started.append(process)
        return process

    def lines(self, event: str | None = None) -> list[Line]:
        """Everything all processes noted, in the order of time."""
        found = []
        for journal in self._folder.glob("*.journal"):
            for text in journal.read_text().splitlines():
                found.append(Line(*json.loads(text)))
        kept = [line for line in found if event is None or line.event == event]
        return sorted(kept, key=lambda line: line.at_s)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


def kill(process: subprocess.Popen) -> float:
    """End it without a word; the answer is when."""
    process.kill()
    process.wait(10)
    return time.monotonic()
