"""What handlers really did, written by themselves, and what it proves.

Every process appends lines to a file of its own: `t_mono, pid, event, job id, attempt`. The
monotonic clock is the machine's, so lines of different processes can be compared.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

START, END_OK, END_ERR = "start", "end_ok", "end_err"


class Journal:
    """One process's own log; a line is one write, so a kill never leaves half of one."""

    def __init__(self, path: Path | str) -> None:
        self._fd = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def note(self, event: str, job_id: str = "", attempt: int = 0) -> None:
        line = f"{time.monotonic():.6f}\t{os.getpid()}\t{event}\t{job_id}\t{attempt}\n"
        os.write(self._fd, line.encode())

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True)
class Line:
    """One happening."""

    t_s: float
    pid: int
    event: str
    job_id: str
    attempt: int


@dataclass
class Run:
    """One start of a job, to its end or to the death of its process."""

    job_id: str
    pid: int
    attempt: int
    from_s: float
    to_s: float = float("inf")
    is_ok: bool = False


@dataclass
class Report:
    """What the journals prove; the lists name jobs."""

    starts: int
    completions: int
    lost: list[str]
    dup_starts: list[str]
    dup_completions: list[str]
    over_attempts: list[str]
    overlaps: list[str]
    restart_s: list[float] = field(default_factory=list)

    @property
    def restart_s_max(self) -> float:
        return max(self.restart_s, default=0.0)

    def __str__(self) -> str:
        return (
            f"starts {self.starts}, completions {self.completions}, lost {len(self.lost)}, "
            f"extra starts {len(self.dup_starts)}, extra completions {len(self.dup_completions)}, "
            f"over attempts {len(self.over_attempts)}, overlaps {len(self.overlaps)}, "
            f"longest restart {self.restart_s_max:.2f} s"
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))


def read_journals(folder: Path) -> list[Line]:
    """Every line of every journal in the folder, in order of time."""
    lines = [
        _line(text) for path in folder.glob("*.journal") for text in path.read_text().splitlines()
    ]
    return sorted(lines, key=lambda line: line.t_s)


def check(
    lines: Iterable[Line],
    *,
    added: Iterable[str],
    buried: Iterable[str] = (),
    killed: Mapping[int, float] | None = None,
    attempts_max: int = 25,
) -> Report:
    """Compare what was promised with what was done.

    `added` are the acknowledged jobs, `buried` those found in the DLQ, `killed` says when
    each killed process died.
    """
    killed = killed or {}
    by_job = _runs(lines, killed)
    runs = [run for job_runs in by_job.values() for run in job_runs]
    done = Counter(run.job_id for run in runs if run.is_ok)
    return Report(
        starts=len(runs),
        completions=done.total(),
        lost=sorted(set(added) - set(done) - set(buried)),
        dup_starts=_beyond({job_id: len(job_runs) for job_id, job_runs in by_job.items()}, 1),
        dup_completions=_beyond(done, 1),
        over_attempts=[j for j, job_runs in by_job.items() if len(job_runs) > attempts_max],
        overlaps=[job_id for job_id, job_runs in by_job.items() if _overlap(job_runs)],
        restart_s=[s for job_runs in by_job.values() for s in _restarts(job_runs, killed)],
    )


def _line(text: str) -> Line:
    t_s, pid, event, job_id, attempt = text.split("\t")
    return Line(float(t_s), int(pid), event, job_id, int(attempt))


def _runs(lines: Iterable[Line], killed: Mapping[int, float]) -> dict[str, list[Run]]:
    by_job: dict[str, list[Run]] = defaultdict(list)
    for line in lines:
        runs = by_job[line.job_id]
        if line.event == START:
            to_s = killed.get(line.pid, float("inf"))
            runs.append(Run(line.job_id, line.pid, line.attempt, line.t_s, to_s))
        elif line.event in (END_OK, END_ERR):
            run = next(one for one in reversed(runs) if one.pid == line.pid)
            run.to_s, run.is_ok = line.t_s, line.event == END_OK
    return {job_id: runs for job_id, runs in by_job.items() if runs}


def _beyond(counts: Mapping[str, int], allowed: int) -> list[str]:
    """Each job once for every time beyond what is allowed."""
    return [job_id for job_id, count in counts.items() for _ in range(count - allowed)]


def _overlap(runs: list[Run]) -> bool:
    return any(later.from_s < earlier.to_s for earlier, later in pairwise(runs))


def _restarts(runs: list[Run], killed: Mapping[int, float]) -> list[float]:
    """How long after its process was killed each unfinished run was started again."""
    return [
        later.from_s - earlier.to_s
        for earlier, later in pairwise(runs)
        if not earlier.is_ok and earlier.to_s == killed.get(earlier.pid)
    ]
