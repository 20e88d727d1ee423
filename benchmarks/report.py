"""Turns figures into a document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.bars import judged
from benchmarks.growth_report import growth_part
from benchmarks.latency_report import latency_part
from benchmarks.machine import own_versions
from benchmarks.peer import PEERS
from benchmarks.rounds import OURS
from benchmarks.scenario import CONCURRENCY
from benchmarks.spread import bound_by, spread

if TYPE_CHECKING:
    from benchmarks.rounds import BenchSettings, Measured
    from benchmarks.scenario import Figures
    from benchmarks.target import Target
    from benchmarks.whole import Outcome

Row = dict[str, Any]


def make_document(machine: Row, target: Target, settings: BenchSettings, outcome: Outcome) -> Row:
    """Everything about one run, raw figures included."""
    scenarios = [_scenario(one) for one in outcome.measured]
    return {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": outcome.took_s,
        "machine": machine,
        "server": _server(target),
        "versions": own_versions(),
        "settings": _settings(settings),
        "peers_missing": outcome.missing,
        "failed": outcome.failed,
        "scenarios": scenarios,
        "latency": latency_part(outcome.waited),
        "growth": growth_part(outcome.grown),
        "bars": judged(scenarios),
    }


def _server(target: Target) -> Row:
    return {
        "kind": target.kind,
        "version": target.version,
        "is_private": target.is_private,
        # Of a server that is not ours nobody asked.
        "aof": target.aof if target.is_private else None,
    }


def _settings(settings: BenchSettings) -> Row:
    return {
        "rounds": settings.rounds,
        "concurrency": CONCURRENCY,
        "order": "sides take turns, and each round begins with the next one",
        "scheduler": "off on all sides",
        "notes": {one.side: one.note for one in settings.peers if one.note},
    }


def _scenario(measured: Measured) -> Row:
    scenario, ours = measured.scenario, measured.figures[OURS]
    return {
        "name": scenario.name,
        "jobs": ours[0].jobs,
        "batch": scenario.batch,
        "in_flight": scenario.in_flight,
        "payload_bytes": scenario.payload_bytes,
        "payload_digest": ours[0].payload_digest,
        "work": msgspec.to_builtins(scenario.work),
        "sides": [_side(name, figures, ours) for name, figures in _sorted(measured)],
        "missing": measured.missing,
    }


def _sorted(measured: Measured) -> list[tuple[str, list[Figures]]]:
    """Ours and what belongs to it first, then the original, then the fastest of the others."""
    names = list(measured.figures)

    def rank(name: str) -> tuple[bool, float]:
        is_other = name in PEERS and not PEERS[name].is_original
        rate = median(one.jobs_per_s for one in measured.figures[name])
        return is_other, -rate if is_other else names.index(name)

    return [(name, measured.figures[name]) for name in sorted(names, key=rank)]


def _side(name: str, figures: Sequence[Figures], ours: Sequence[Figures]) -> Row:
    rates = [one.jobs_per_s for one in figures]
    ratios = [our.jobs_per_s / rate for our, rate in zip(ours, rates, strict=True)]
    shares = [one.server_cpu_share for one in figures if one.server_cpu_share is not None]
    return {
        "side": name,
        "version": figures[0].version,
        "loop": figures[0].loop,
        "concurrency": figures[0].concurrency,
        "jobs": figures[0].jobs,
        "jobs_per_s": spread(rates),
        "cpu_us_per_job": spread([one.cpu_us_per_job for one in figures]),
        "server_cpu_share": spread(shares) if shares else None,
        "bound_by": bound_by(figures),
        "ours_to_this": spread(ratios),
        "rounds": [
            {
                "jobs_per_s": one.jobs_per_s,
                "seconds": one.seconds,
                "cpu_seconds": one.cpu_seconds,
                "server_cpu_share": one.server_cpu_share,
            }
            for one in figures
        ],
    }
