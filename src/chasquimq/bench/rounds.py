"""Runs the rounds: one fresh process per side and round, sides taking turns."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from chasquimq.bench.ours import preload
from chasquimq.bench.peer import ORIGINALS, Peer, PeerMissing, last_line
from chasquimq.bench.scenario import (
    DELAYED,
    DLQ,
    EVENTS,
    HISTORY,
    STREAM,
    Figures,
    LoopKind,
    Plan,
    Scenario,
    wait_s,
)
from chasquimq.bench.target import ask
from chasquimq.errors import ChasquiError

if TYPE_CHECKING:
    from chasquimq.bench.target import Target

OURS = "ours"
LIMIT = "limit"
REDIS_PY = "redis-py"
QUICK_ROUNDS = 3
DEFAULT_ROUNDS = 5
_SOURCE_ROOT = Path(__file__).parents[2]

OnStep = Callable[[str], None]


class BenchFailed(ChasquiError):
    """Read the line: one of our own sides ended without figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What to run and how often."""

    scenarios: Sequence[Scenario]
    rounds: int = DEFAULT_ROUNDS
    originals: Sequence[Peer] = ORIGINALS


@dataclass(frozen=True, slots=True)
class Side:
    """Who is measured, by which command line and on which event loop."""

    name: str
    command: list[str]
    loop: LoopKind
    is_peer: bool = False


@dataclass(slots=True)
class Measured:
    """One scenario: the figures of each side, round by round, and who is missing and why."""

    scenario: Scenario
    figures: dict[str, list[Figures]] = field(default_factory=dict[str, list[Figures]])
    missing: dict[str, str] = field(default_factory=dict[str, str])


class Bench:
    """All scenarios on one server."""

    def __init__(self, target: Target, settings: BenchSettings, environ: Mapping[str, str]) -> None:
        self._target = target
        self._settings = settings
        self._own_loop: LoopKind = "uvloop" if find_spec("uvloop") else "asyncio"
        self._peers, self._missing = self._find_peers(environ)

    def step_count(self) -> int:
        """How often `on_step` will be called."""
        sizes = [len(self._sides(scenario)) for scenario in self._settings.scenarios]
        return sum(1 + size * self._settings.rounds for size in sizes)

    def run(self, on_step: OnStep) -> list[Measured]:
        """Measure every scenario; raises BenchFailed when ours or the limit cannot be."""
        with tempfile.TemporaryDirectory(prefix="chasqui-bench-") as scratch:
            tape = str(Path(scratch) / "tape")
            return [self._measure(one, tape, on_step) for one in self._settings.scenarios]

    def _measure(self, scenario: Scenario, tape: str, on_step: OnStep) -> Measured:
        measured = Measured(scenario, missing=dict(self._missing))
        plan = self._plan(scenario, tape)
        sides = self._sides(scenario)
        on_step(f"{scenario.name}: recording our commands")
        self._once(sides[0], msgspec.structs.replace(plan, is_recording=True))
        for round_number in range(self._settings.rounds):
            for side in _turns(sides, round_number):
                on_step(f"{scenario.name}: {side.name}, round {round_number + 1}")
                self._take_turn(side, plan, measured)
        return measured

    def _take_turn(self, side: Side, plan: Plan, measured: Measured) -> None:
        if side.name in measured.missing:
            return
        try:
            figures = self._once(side, plan)
        except BenchFailed as failed:
            if side.name in (OURS, LIMIT):
                raise
            measured.missing[side.name] = str(failed)
            measured.figures.pop(side.name, None)
            return
        measured.figures.setdefault(side.name, []).append(figures)

    def _once(self, side: Side, plan: Plan) -> Figures:
        self._target.flush()
        # Each package keeps its own books of delayed jobs, so a peer adds those itself.
        fills_itself = plan.act == "add" or (side.is_peer and plan.work.delay_ms)
        if not fills_itself:
            asyncio.run(preload(plan.url, plan.jobs, plan.work))
        figures = _run(side, msgspec.structs.replace(plan, loop=side.loop))
        self._check_effect(side, plan, figures.jobs)
        return figures

    def _check_effect(self, side: Side, plan: Plan, jobs: int) -> None:
        # A side that lost jobs would look fast.
        left = self._count("XLEN", STREAM)
        if plan.act == "consume":
            left += self._count("ZCARD", DELAYED) + self._count("XLEN", DLQ)
        is_whole = left == 0 if plan.act == "consume" else left >= jobs
        if not is_whole:
            raise BenchFailed(f"{side.name} left {left} jobs in the queue after {jobs}")
        if plan.work.result is not None and self._count("DBSIZE") < jobs:
            raise BenchFailed(f"{side.name} must keep {jobs} results and did not")
        if plan.work.has_events and not self._count("XLEN", EVENTS):
            raise BenchFailed(f"{side.name} must write events and wrote none")
        if plan.work.has_history and side.name == OURS and not self._count("XLEN", HISTORY):
            raise BenchFailed(f"{side.name} must keep a history and did not")

    def _count(self, *question: str) -> int:
        return ask(self._target.url, *question)

    def _plan(self, scenario: Scenario, tape: str) -> Plan:
        return Plan(
            act=scenario.act, jobs=scenario.jobs, batch=scenario.batch,
            in_flight=scenario.in_flight, url=self._target.url, loop=self._own_loop, tape=tape,
            wait_s=wait_s(scenario.jobs), work=scenario.work,
        )  # fmt: skip

    def _sides(self, scenario: Scenario) -> list[Side]:
        own = [OURS, LIMIT, *([REDIS_PY] if scenario.has_redis_py else [])]
        sides = [Side(name, _own_command(name), self._own_loop) for name in own]
        # Where promotion sets the pace, one loop of the original is enough to wait for.
        is_slow = scenario.work.needs_promotion
        return [*sides, *(one for one in self._peers if one.loop == "asyncio" or not is_slow)]

    def _find_peers(self, environ: Mapping[str, str]) -> tuple[list[Side], dict[str, str]]:
        peers: list[Side] = []
        missing: dict[str, str] = {}
        for peer in self._settings.originals:
            try:
                command = peer.command(self._target, environ)
                peers.append(Side(peer.side, command, peer.loop, is_peer=True))
            except PeerMissing as reason:
                missing[peer.side] = str(reason)
        return peers, missing


def sized(scenario: Scenario, jobs: int | None, *, is_quick: bool) -> Scenario:
    """The scenario with the number of jobs that was asked for."""
    return replace(scenario, jobs=jobs or (scenario.quick_jobs if is_quick else scenario.jobs))


def _turns(sides: Sequence[Side], round_number: int) -> list[Side]:
    # Whoever always came first would always meet the machine that the last one left.
    first = round_number % len(sides)
    return [*sides[first:], *sides[:first]]


def _own_command(side: str) -> list[str]:
    return [sys.executable, "-m", "chasquimq.bench.side", side]


def _run(side: Side, plan: Plan) -> Figures:
    command = [*side.command, msgspec.json.encode(plan).decode()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            timeout=plan.wait_s, env=_environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BenchFailed(
            f"{side.name} must give figures within {plan.wait_s} s and did not"
        ) from None
    try:
        return msgspec.json.decode(last_line(done.stdout), type=Figures)
    except msgspec.DecodeError:
        why = last_line(done.stderr)
        raise BenchFailed(f"{side.name} must give figures and ended with: {why}") from None


def _environment() -> dict[str, str]:
    # The measuring processes import the package that is running now, installed or not.
    paths: Iterator[str] = filter(None, (str(_SOURCE_ROOT), os.environ.get("PYTHONPATH")))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
