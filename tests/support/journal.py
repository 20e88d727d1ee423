"""What processes really did, written by themselves, line by line.

Every process appends to a file of its own: `t_mono, pid, event, job id, generation, attempt,
delivery, extra`. The monotonic clock is the machine's, so lines of different processes compare.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import intern

ADD_CALL, ADD_OK, ADD_ERR = "add_call", "add_ok", "add_err"
START, END_OK, END_ERR = "start", "end_ok", "end_err"
LEASE_LOST, CANCEL_OK, REPLAY_OK, EXIT = "lease_lost", "cancel_ok", "replay_ok", "exit"
STALL, ALIVE = "stall", "alive"
OPEN_S = float("inf")


class Journal:
    """One process's own log; a line is one write, so a kill never leaves half of one."""

    def __init__(self, path: Path | str) -> None:
        self._fd = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def note(
        self,
        event: str,
        job_id: str = "",
        attempt: int = 0,
        *,
        generation: int = 0,
        delivery: str = "",
        extra: object = "",
    ) -> None:
        fields = (event, job_id, generation, attempt, delivery, extra)
        line = "\t".join([f"{time.monotonic():.6f}", str(os.getpid()), *map(str, fields)])
        os.write(self._fd, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Line:
    """One happening; `extra` is a delay, a due time or a stall in ms, or counters, by its event."""

    t_s: float
    pid: int
    event: str
    job_id: str
    attempt: int
    generation: int = 0
    delivery: str = ""
    extra: str = ""


@dataclass(slots=True)
class Run:
    """One start of a job, to its end or to the death of its process."""

    job_id: str
    generation: int
    pid: int
    attempt: int
    delivery: str
    from_s: float
    due_ms: int = 0
    to_s: float = OPEN_S
    # END_OK, END_ERR or nothing.
    end: str = ""

    @property
    def is_ok(self) -> bool:
        return self.end == END_OK


# A job, once for each time that it was replayed from the DLQ.
Life = tuple[str, int]


def read_journals(folder: Path) -> list[Line]:
    """Every line of every journal in the folder, in order of time."""
    lines = [
        as_line(text) for path in folder.glob("*.journal") for text in path.read_text().splitlines()
    ]
    return sorted(lines, key=lambda line: line.t_s)


def runs_by_life(lines: Iterable[Line], died_s: Mapping[int, float]) -> dict[Life, list[Run]]:
    """Each life's runs in order; one that never ended lasts until its process died."""
    by_life: dict[Life, list[Run]] = defaultdict(list)
    for line in lines:
        runs = by_life[line.job_id, line.generation]
        if line.event == START:
            runs.append(_begun(line, died_s.get(line.pid, OPEN_S)))
        elif line.event in (END_OK, END_ERR):
            run = next(one for one in reversed(runs) if one.pid == line.pid)
            run.to_s, run.end = line.t_s, line.event
    return {life: runs for life, runs in by_life.items() if runs}


def _begun(line: Line, died_s: float) -> Run:
    due_ms = int(line.extra or 0)
    return Run(
        line.job_id, line.generation, line.pid, line.attempt, line.delivery, line.t_s, due_ms, died_s
    )  # fmt: skip


def as_line(text: str) -> Line:
    """What a line of a journal tells."""
    t_s, pid, event, job_id, generation, attempt, delivery, extra = text.split("\t", 7)
    # A million jobs have few words, and each id four times.
    event, job_id = intern(event), intern(job_id)
    return Line(
        float(t_s), int(pid), event, job_id, int(attempt), int(generation), delivery, extra
    )  # fmt: skip
