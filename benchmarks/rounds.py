"""Runs the rounds: one fresh process per side and round, sides taking turns, each checked for its work."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from benchmarks.child import BenchFailed, Side, measure, own_command
from benchmarks.peer import PEERS, Peer, PeerMissing
from benchmarks.scenario import (
    DELAYED,
    DLQ,
    EVENTS,
    HISTORY,
    STREAM,
    Figures,
    LoopKind,
    Plan,
    Scenario,
    payload_of,
    wait_s,
)
from benchmarks.server import ServerCpu, ask, preload

if TYPE_CHECKING:
    from benchmarks.server import Target

OURS = "ours"
LIMIT = "limit"
REDIS_PY = "redis-py"
QUICK_ROUNDS = 2
DEFAULT_ROUNDS = 5
# What a package other than ChasquiMQ (Rust) gets of its jobs when it has to be quick.
_QUICK_SHARE = 4

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What to run and how often."""

    scenarios: Sequence[Scenario]
    rounds: int = DEFAULT_ROUNDS
    peers: Sequence[Peer] = tuple(PEERS.values())
    is_quick: bool = False


@dataclass(slots=True)
class Measured:
    """One scenario: the figures of each side, round by round, and who is missing and why."""

    scenario: Scenario
    figures: dict[str, list[Figures]] = field(default_factory=dict[str, list[Figures]])
    missing: dict[str, str] = field(default_factory=dict[str, str])


class Bench:
    """All scenarios on one server."""

    def __init__(self, target: Target, settings: BenchSettings, environ: Mapping[str, str]) -> None:
        self.target = target
        self.settings = settings
        self.own_loop: LoopKind = "uvloop" if find_spec("uvloop") else "asyncio"
        self.failed: dict[str, str] = {}
        self.peers, self.missing = self._find_peers(environ)

    def step_count(self) -> int:
        """How often `on_step` will be called."""
        sizes = [len(self.sides(scenario)) for scenario in self.settings.scenarios]
        return sum(1 + size * self.settings.rounds for size in sizes)

    def run(self, on_step: OnStep) -> list[Measured]:
        """Measure every scenario; one in which ours or the limit fails is named in `failed`."""
        measured: list[Measured] = []
        with tempfile.TemporaryDirectory(prefix="chasqui-bench-") as scratch:
            for scenario in self.settings.scenarios:
                # Minutes of figures must not be lost to one that cannot be had.
                try:
                    measured.append(self._measure(scenario, f"{scratch}/tape", on_step))
                except BenchFailed as failed:
                    self.failed[scenario.name] = str(failed)
        return measured

    def own_side(self, name: str) -> Side:
        return Side(name, own_command(name), self.own_loop)

    def original(self) -> Side | None:
        """The original where it can run, on the faster loop if both were asked for."""
        return next((side for side in reversed(self.peers) if side.is_original), None)

    def sides(self, scenario: Scenario) -> list[Side]:
        """Who takes part in a scenario, ours first."""
        own = [OURS, LIMIT, *([REDIS_PY] if scenario.has_redis_py else [])]
        peers = [side for side in self.peers if side.peer and self._has_part(side.peer, scenario)]
        return [*(self.own_side(name) for name in own), *peers]

    def plan(self, scenario: Scenario, tape: str) -> Plan:
        """What our own side is given."""
        return Plan(
            act=scenario.act, jobs=scenario.jobs, batch=scenario.batch,
            in_flight=scenario.in_flight, url=self.target.url, loop=self.own_loop, tape=tape,
            wait_s=wait_s(scenario.jobs), work=scenario.work,
            payload=payload_of(scenario.payload_bytes),
        )  # fmt: skip

    def once(self, side: Side, plan: Plan) -> Figures:
        """One measurement on an empty server; raises BenchFailed when it does not count."""
        self.target.flush()
        if plan.act == "consume" and not _fills_itself(side, plan):
            asyncio.run(preload(plan.url, plan.jobs, plan.work, plan.payload))
        figures = self.watched(side, plan)
        check_effect(self.target.url, side, plan, figures.jobs)
        return figures

    def watched(self, side: Side, plan: Plan) -> Figures:
        """One measurement of what is there, with what the server had to do for it."""
        with ServerCpu(self.target.pid) as server:
            figures = measure(side, plan)
        share = server.share(figures.began_s, figures.seconds)
        return msgspec.structs.replace(figures, server_cpu_share=share)

    def _measure(self, scenario: Scenario, tape: str, on_step: OnStep) -> Measured:
        measured = Measured(scenario, missing=self._missing_in(scenario))
        plan = self.plan(scenario, tape)
        sides = self.sides(scenario)
        on_step(f"{scenario.name}: recording our commands")
        self.once(sides[0], msgspec.structs.replace(plan, is_recording=True))
        for round_number in range(self.settings.rounds):
            for side in turns(sides, round_number):
                on_step(f"{scenario.name}: {side.name}, round {round_number + 1}")
                self._take_turn(side, self._plan_of(side, scenario, plan), measured)
        return measured

    def _take_turn(self, side: Side, plan: Plan, measured: Measured) -> None:
        if side.name in measured.missing:
            return
        try:
            figures = self.once(side, plan)
        except BenchFailed as failed:
            if side.peer is None:
                raise
            measured.missing[side.name] = str(failed)
            measured.figures.pop(side.name, None)
            return
        measured.figures.setdefault(side.name, []).append(figures)

    def _plan_of(self, side: Side, scenario: Scenario, plan: Plan) -> Plan:
        if side.peer is None:
            return plan
        jobs = side.peer.jobs_of(scenario, plan.jobs)
        if self.settings.is_quick and not side.is_original:
            jobs = max(1, jobs // _QUICK_SHARE)
        return msgspec.structs.replace(plan, jobs=jobs)

    @staticmethod
    def _has_part(peer: Peer, scenario: Scenario) -> bool:
        return not peer.refusal(scenario) and (peer.is_original or scenario.has_peers)

    def _missing_in(self, scenario: Scenario) -> dict[str, str]:
        """Who cannot be run here, and who cannot do what the scenario asks for."""
        wanted = [one for one in self.settings.peers if one.is_original or scenario.has_peers]
        named = {one.side: self.missing[one.side] for one in wanted if one.side in self.missing}
        refused = {one.side: reason for one in wanted if (reason := one.refusal(scenario))}
        return named | refused

    def _find_peers(self, environ: Mapping[str, str]) -> tuple[list[Side], dict[str, str]]:
        peers: list[Side] = []
        missing: dict[str, str] = {}
        for peer in self.settings.peers:
            try:
                peers.append(Side(peer.side, peer.command(self.target, environ), peer.loop, peer))
            except PeerMissing as reason:
                missing[peer.side] = str(reason)
        return peers, missing


def sized(scenario: Scenario, jobs: int | None, *, is_quick: bool) -> Scenario:
    """The scenario with the number of jobs that was asked for."""
    return replace(scenario, jobs=jobs or (scenario.quick_jobs if is_quick else scenario.jobs))


def turns(sides: Sequence[Side], round_number: int) -> list[Side]:
    """A side that always came first would always meet the machine that the last one left."""
    first = round_number % len(sides)
    return [*sides[first:], *sides[:first]]


def _fills_itself(side: Side, plan: Plan) -> bool:
    # Only ChasquiMQ (Rust) reads our bytes, and even it keeps books of its own for delayed jobs.
    if side.peer is None:
        return False
    return not side.is_original or plan.work.delay_ms > 0


# ── what a side must have done ────────────────────────────────────────────────────────────────────


def check_effect(url: str, side: Side, plan: Plan, jobs: int) -> None:
    """Look at the server for what the plan asked for.

    Other packages have books of their own; their programs count runs and results themselves.

    Raises:
        BenchFailed: jobs, results, events or history are missing, or jobs are left.
    """
    if side.peer is not None and not side.is_original:
        return
    _check_jobs(url, side, plan, jobs)
    work = plan.work
    if work.result is not None and ask(url, "DBSIZE") < jobs:
        raise BenchFailed(f"{side.name} must keep {jobs} results and did not")
    if work.events != "off" and not ask(url, "XLEN", EVENTS):
        raise BenchFailed(f"{side.name} must write events and wrote none")
    if work.has_history and side.name == "ours" and not ask(url, "XLEN", HISTORY):
        raise BenchFailed(f"{side.name} must keep a history and did not")


def _check_jobs(url: str, side: Side, plan: Plan, jobs: int) -> None:
    in_stream = ask(url, "XLEN", STREAM)
    if plan.act == "add":
        if in_stream < jobs:
            raise BenchFailed(f"{side.name} must add {jobs} jobs, {in_stream} are there")
        return
    left = in_stream + ask(url, "ZCARD", DELAYED) + ask(url, "XLEN", DLQ)
    if left > plan.left:
        raise BenchFailed(f"{side.name} left {left} jobs in the queue after {jobs}")
