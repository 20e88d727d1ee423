"""Joins journals, faults and what lies on the server, and says whether the promises were kept."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from support.journal import (
    ADD_CALL,
    ADD_OK,
    CANCEL_OK,
    EXIT,
    LEASE_LOST,
    OPEN_S,
    REPLAY_OK,
    STALL,
    Life,
    Line,
    Run,
    runs_by_life,
)  # fmt: skip
from support.places import Places
from support.rules import RULES, is_unsettling

# An end this short before a fault may not have reached the server; a busy machine needs longer.
ACK_WINDOW_S = 0.25
# Every worker of a test gives a sign of life more often than this.
_SILENCE_S = 0.3
_FINDINGS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to whom; without a pid, to everybody."""

    kind: str
    from_s: float
    to_s: float
    pid: int | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that a run of a test leaves behind, and what it was allowed to do."""

    lines: Sequence[Line]
    places: Places = field(default_factory=Places)
    faults: Sequence[Fault] = ()
    seed: int = 0
    attempts_max: int = 25
    late_p99_ms_max: float = float("inf")
    # What to add to the monotonic clock to read the server's; None: due times cannot be judged.
    server_offset_ms: float | None = None
    # False: the test looks before everything has ended.
    is_drained: bool = True


@dataclass
class Verdict:
    """Each broken rule with what broke it, and the figures of the run."""

    seed: int
    broken: dict[str, list[str]]
    figures: dict[str, float]

    @property
    def is_pass(self) -> bool:
        return not self.broken

    @property
    def line(self) -> str:
        figures = ", ".join(f"{name} {value:g}" for name, value in self.figures.items())
        return f"{'PASS' if self.is_pass else 'FAIL'} seed {self.seed}: {figures}"

    def demand(self) -> None:
        """Raise unless every rule was kept; the message names the rules and the jobs."""
        if self.is_pass:
            return
        told = [
            f"{rule}: {len(found)}\n    " + "\n    ".join(found[:_FINDINGS_SHOWN])
            for rule, found in self.broken.items()
        ]
        raise AssertionError("\n".join([self.line, *told]))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self) | {"is_pass": self.is_pass}, indent=1))


def check(evidence: Evidence) -> Verdict:
    """Apply every rule."""
    case = Case(evidence)
    found = {name: sorted(rule(case)) for name, rule in RULES.items()}
    broken = {name: findings for name, findings in found.items() if findings}
    return Verdict(evidence.seed, broken, case.figures)


@dataclass
class Case:
    """The evidence, joined once, as the rules ask for it."""

    evidence: Evidence
    places: Places = field(init=False)
    faults: list[Fault] = field(init=False)
    runs: dict[Life, list[Run]] = field(init=False)

    def __post_init__(self) -> None:
        self.places = self.evidence.places
        lines, faults = self.evidence.lines, self.evidence.faults
        self.faults = [*faults, *_stalls(lines), *_silences(lines, faults)]
        died_s = {f.pid: f.from_s for f in self.faults if f.kind == "kill" and f.pid}
        self.runs = runs_by_life(self.evidence.lines, died_s)

    @cached_property
    def lives(self) -> set[Life]:
        """Every life that somebody was promised: by an add that returned, or by a replay."""
        return {
            (line.job_id, line.generation)
            for line in self.evidence.lines
            if line.event in (ADD_OK, REPLAY_OK)
        }

    @cached_property
    def done(self) -> set[Life]:
        """Lives with a handler that returned."""
        return {life for life, runs in self.runs.items() if any(run.is_ok for run in runs)}

    @cached_property
    def cleanly_done(self) -> set[Life]:
        """Lives with a handler that returned while nothing disturbed its worker."""
        return {
            life
            for life, runs in self.runs.items()
            if any(run.is_ok and not self.was_unsettled(run) for run in runs)
        }

    @cached_property
    def cancelled(self) -> set[Life]:
        lines = self.evidence.lines
        return {(line.job_id, line.generation) for line in lines if line.event == CANCEL_OK}

    @cached_property
    def replays(self) -> Counter[str]:
        return Counter(line.job_id for line in self.evidence.lines if line.event == REPLAY_OK)

    @cached_property
    def leases_lost(self) -> set[tuple[int, str]]:
        lines = self.evidence.lines
        return {(line.pid, line.job_id) for line in lines if line.event == LEASE_LOST}

    @cached_property
    def exits(self) -> list[str]:
        """The counters of workers that left by themselves."""
        return [line.extra for line in self.evidence.lines if line.event == EXIT and line.extra]

    @cached_property
    def not_before_s(self) -> dict[str, float]:
        """When a delayed job may start at the earliest: its delay after its add was called."""
        calls = [line for line in self.evidence.lines if line.event == ADD_CALL and line.extra]
        return {line.job_id: line.t_s + int(line.extra) / 1000 for line in calls}

    @cached_property
    def late_ms(self) -> list[tuple[Run, float]]:
        """How long after its due time each run began, where that can be told."""
        offset_ms = self.evidence.server_offset_ms
        if offset_ms is None:
            return []
        all_runs = (run for runs in self.runs.values() for run in runs)
        # Whoever claims a dead worker's job later is late for another reason.
        fresh = [run for run in all_runs if run.due_ms and run is self.runs_of_entry(run)[0]]
        return [(run, run.from_s * 1000 + offset_ms - run.due_ms) for run in fresh]

    def runs_of_entry(self, run: Run) -> list[Run]:
        runs = self.runs[run.job_id, run.generation]
        return [one for one in runs if one.delivery == run.delivery]

    def late_percentile_ms(self, share: float) -> float:
        late_ms = sorted(ms for _, ms in self.late_ms)
        return late_ms[int(share * (len(late_ms) - 1))] if late_ms else 0.0

    def faults_of(self, pid: int) -> Iterator[Fault]:
        yield from self._faults_by_pid[pid]
        yield from self._faults_by_pid[None]

    def was_unsettled(self, run: Run) -> bool:
        """Whether a fault hit the run, or hit so soon after it that its end may be unknown."""
        return any(
            is_unsettling(fault.kind)
            and fault.to_s >= run.from_s
            and fault.from_s <= run.to_s + ACK_WINDOW_S
            for fault in self.faults_of(run.pid)
        )

    @cached_property
    def figures(self) -> dict[str, float]:
        pairs = [pair for runs in self.runs.values() for pair in pairwise(runs)]
        again = [earlier for earlier, later in pairs if earlier.delivery == later.delivery]
        restarts = [
            later.from_s - earlier.to_s
            for earlier, later in pairs
            if not earlier.end and earlier.to_s < OPEN_S
        ]
        kills = [fault for fault in self.faults if fault.kind == "kill"]
        found = {
            "jobs": len(self.lives),
            "starts": sum(map(len, self.runs.values())),
            "completions": sum(run.is_ok for runs in self.runs.values() for run in runs),
            "dead": len(self.places.dead),
            "kills": len(kills),
            "in_flight": sum(self._in_flight(fault) for fault in kills),
            "extra_starts": len(again),
            "extra_completions": sum(run.is_ok for run in again),
            "restart_s_max": round(max(restarts, default=0.0), 2),
        }
        if stalls := len(self.faults) - len(self.evidence.faults):
            found["stalls"] = stalls
        if self.late_ms:
            found["late_p50_ms"] = round(self.late_percentile_ms(0.5))
            found["late_p99_ms"] = round(self.late_percentile_ms(0.99))
        return found

    def _in_flight(self, kill: Fault) -> int:
        """How many runs the process had begun and not ended when it was killed."""
        runs = self._runs_by_pid[kill.pid or 0]
        begun = runs[: bisect_left(runs, kill.from_s, key=lambda run: run.from_s)]
        return sum(run.to_s >= kill.from_s for run in begun)

    @cached_property
    def _runs_by_pid(self) -> dict[int, list[Run]]:
        found: dict[int, list[Run]] = defaultdict(list)
        for run in sorted((r for runs in self.runs.values() for r in runs), key=lambda r: r.from_s):
            found[run.pid].append(run)
        return found

    @cached_property
    def _faults_by_pid(self) -> dict[int | None, list[Fault]]:
        found: dict[int | None, list[Fault]] = defaultdict(list)
        for fault in self.faults:
            found[fault.pid].append(fault)
        return found


def _stalls(lines: Sequence[Line]) -> Iterator[Fault]:
    """A process that nobody let run is as good as stopped."""
    for line in lines:
        if line.event == STALL:
            yield Fault("stop", line.t_s - int(line.extra) / 1000, line.t_s, line.pid)


def _silences(lines: Sequence[Line], faults: Sequence[Fault]) -> Iterator[Fault]:
    """A process that was killed while nobody let it run could not note that any more."""
    last_s = {line.pid: line.t_s for line in lines}
    for fault in faults:
        seen_s = last_s.get(fault.pid or 0, fault.from_s)
        if fault.kind == "kill" and fault.from_s - seen_s > _SILENCE_S:
            yield Fault("stop", seen_s, fault.from_s, fault.pid)
