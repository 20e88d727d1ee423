"""Puts a run together from the names of scenarios and peers, and measures all of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from benchmarks.growth import DIMENSIONS, Dimension, Grown, Growth, GrowthSettings
from benchmarks.latency import Latency, LatencySettings, Waited
from benchmarks.peer import PEERS, Peer
from benchmarks.rounds import (
    DEFAULT_ROUNDS,
    QUICK_ROUNDS,
    Bench,
    BenchSettings,
    Measured,
    OnStep,
    sized,
)
from benchmarks.scenario import SCENARIOS, Scenario
from chasquimq.errors import SettingsError

if TYPE_CHECKING:
    from benchmarks.server import Target

LATENCY = "latency"
GROWTH: dict[str, Dimension] = {f"growth-{dimension}": dimension for dimension in DIMENSIONS}
SCENARIO_NAMES = (*SCENARIOS, LATENCY, *GROWTH)
NO_PEER = "none"
PEER_NAMES = (*PEERS, NO_PEER)
_QUICK_GROWTH_JOBS = 20_000
_QUICK_PEERS_IN = "consume-100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The settings of each part; None: the part is left out."""

    bench: BenchSettings
    latency: LatencySettings | None
    growth: GrowthSettings | None


def choose(
    scenarios: Sequence[str],
    peers: Sequence[str],
    *,
    rounds: int | None = None,
    jobs: int | None = None,
    is_quick: bool = False,
) -> Choice:
    """Everything when nothing is named; what is quick when it has to be.

    Raises:
        SettingsError: a name is not known; it says which are.
    """
    refuse_unknown("scenario", scenarios, SCENARIO_NAMES)
    refuse_unknown("peer", peers, PEER_NAMES)
    usual = [name for name, one in SCENARIOS.items() if one.is_quick or not is_quick]
    names = list(scenarios) or [*usual, LATENCY, *([] if is_quick else GROWTH)]
    chosen = [one for name, one in SCENARIOS.items() if name in names]
    if is_quick and not scenarios:
        chosen = list(map(_quick, chosen))
    return Choice(
        bench=BenchSettings(
            scenarios=[sized(one, jobs, is_quick=is_quick) for one in chosen],
            rounds=rounds or (QUICK_ROUNDS if is_quick else DEFAULT_ROUNDS),
            peers=_peers(peers),
            is_quick=is_quick,
        ),
        latency=_latency(rounds, is_quick=is_quick) if LATENCY in names else None,
        growth=_growth(names, rounds, jobs, is_quick=is_quick),
    )


def refuse_unknown(kind: str, found: Sequence[str], known: Sequence[str]) -> None:
    for name in found:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else ""
            raise SettingsError(kind, name, f"one of {', '.join(known)}", hint=hint)


def _quick(scenario: Scenario) -> Scenario:
    """Many packages take many seconds: they are all in one scenario."""
    return scenario if scenario.name == _QUICK_PEERS_IN else replace(scenario, has_peers=False)


def _peers(names: Sequence[str]) -> list[Peer]:
    return [peer for side, peer in PEERS.items() if not names or side in names]


def _latency(rounds: int | None, *, is_quick: bool) -> LatencySettings:
    if is_quick:
        return LatencySettings.quick()
    return LatencySettings(rounds=min(rounds, 3) if rounds else 3)


def _growth(
    names: Sequence[str], rounds: int | None, jobs: int | None, *, is_quick: bool
) -> GrowthSettings | None:
    wanted: list[Dimension] = [dimension for name, dimension in GROWTH.items() if name in names]
    if not wanted:
        return None
    if is_quick or jobs:
        return GrowthSettings.small(wanted, jobs or _QUICK_GROWTH_JOBS)
    return GrowthSettings(dimensions=wanted, rounds=min(rounds, 3) if rounds else 3)


# ── the whole run ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All figures of a run, and which peers could not be run at all."""

    measured: list[Measured]
    waited: list[Waited]
    grown: list[Grown]
    missing: dict[str, str]
    # What could not be measured of ours, or of ChasquiMQ (Rust) beyond the scenarios.
    failed: dict[str, str]
    took_s: float


class Whole:
    """None in place of settings leaves a part out."""

    def __init__(
        self,
        target: Target,
        settings: BenchSettings,
        environ: Mapping[str, str],
        latency: LatencySettings | None = None,
        growth: GrowthSettings | None = None,
    ) -> None:
        self._bench = Bench(target, settings, environ)
        self._latency = Latency(self._bench, latency) if latency else None
        self._growth = Growth(self._bench, growth) if growth else None

    def step_count(self) -> int:
        """How often `on_step` will be called."""
        parts = (self._bench, self._latency, self._growth)
        return sum(part.step_count() for part in parts if part)

    def run(self, on_step: OnStep) -> Outcome:
        """Measure everything; what cannot be measured is named with its reason."""
        began_s = time.monotonic()
        measured = self._bench.run(on_step)
        waited = self._latency.run(on_step) if self._latency else []
        grown = self._growth.run(on_step) if self._growth else []
        return Outcome(
            measured=measured, waited=waited, grown=grown, missing=self._bench.missing, failed=self._bench.failed,
            took_s=time.monotonic() - began_s,
        )  # fmt: skip
