"""Turns figures into a document for programs and rows for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from chasquimq.bench.machine import own_versions, quiet_text
from chasquimq.bench.rounds import LIMIT, OURS
from chasquimq.bench.scenario import CONCURRENCY, PAYLOAD

if TYPE_CHECKING:
    from chasquimq.bench.rounds import BenchSettings, Measured
    from chasquimq.bench.scenario import Figures
    from chasquimq.bench.target import Target

Row = dict[str, Any]

# What ours must reach: scenario, side, how many times that side's rate.
BARS = (
    ("consume-100", "limit", 0.6),
    ("consume-100", "original", 8.0),
    ("add-bulk-50", "original", 2.0),
    ("add-bulk-50x8", "original", 3.5),
    ("add-concurrent", "redis-py", 5.0),
    ("delayed-end-to-end", "original", 5.0),
    ("retry-throughput", "original", 5.0),
)


def make_document(
    machine: Row, target: Target, settings: BenchSettings, measured: Sequence[Measured]
) -> Row:
    """Everything about one run, raw figures included."""
    scenarios = [_scenario(one) for one in measured]
    return {
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "server": {"kind": target.kind, "version": target.version, "is_private": target.is_private},
        "versions": own_versions(),
        "settings": {
            "rounds": settings.rounds,
            "concurrency": CONCURRENCY,
            "payload": PAYLOAD,
            "order": "sides take turns, and each round begins with the next one",
            "scheduler": "off on all sides",
        },
        "scenarios": scenarios,
        "bars": _bars(scenarios),
    }


def table_rows(document: Row) -> list[Row]:
    """One row per scenario and side."""
    return [
        _row(scenario, side, is_first=at == 0)
        for scenario in document["scenarios"]
        for at, side in enumerate(scenario["sides"])
    ]


def notes(document: Row) -> list[str]:
    """What the table does not say: where, on which loops, who is missing, which bars were met."""
    machine, server = document["machine"], document["server"]
    where = f"{server['kind']} {server['version']}, {machine['cpu']} x {machine['cores']}"
    lines = [
        f"{where}, Python {machine['python']}",
        quiet_text(machine),
        f"medians of {document['settings']['rounds']} rounds; ratios are paired round by round",
        "event loops: " + ", ".join(f"{side} {loop}" for side, loop in _loops(document).items()),
    ]
    reasons = {(s, why) for one in document["scenarios"] for s, why in one["missing"].items()}
    lines += [f"missing: {side}: {why}" for side, why in sorted(reasons)]
    return lines + [_bar_line(bar) for bar in document["bars"]]


def ratio_text(ratio: float, side: str) -> str:
    return f"{ratio:.0%}" if side == LIMIT else f"{ratio:.1f}x"


def spread_text(ratio: dict[str, float], side: str) -> str:
    low, high = (ratio_text(ratio[end], side) for end in ("min", "max"))
    return f"{ratio_text(ratio['median'], side)} ({low} … {high})"


def _scenario(measured: Measured) -> Row:
    scenario, ours = measured.scenario, measured.figures[OURS]
    return {
        "name": scenario.name,
        "jobs": ours[0].jobs,
        "batch": scenario.batch,
        "in_flight": scenario.in_flight,
        "work": msgspec.to_builtins(scenario.work),
        "sides": [_side(name, figures, ours) for name, figures in measured.figures.items()],
        "missing": measured.missing,
    }


def _side(name: str, figures: Sequence[Figures], ours: Sequence[Figures]) -> Row:
    rates = [one.jobs_per_s for one in figures]
    ratios = [our.jobs_per_s / rate for our, rate in zip(ours, rates, strict=True)]
    return {
        "side": name,
        "version": figures[0].version,
        "loop": figures[0].loop,
        "jobs_per_s": _spread(rates),
        "cpu_us_per_job": _spread([one.cpu_us_per_job for one in figures]),
        "ours_to_this": _spread(ratios),
        "rounds": [{"seconds": one.seconds, "cpu_seconds": one.cpu_seconds} for one in figures],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def _row(scenario: Row, side: Row, *, is_first: bool) -> Row:
    rate, ratio = side["jobs_per_s"], side["ours_to_this"]
    is_ours = side["side"] == OURS
    return {
        "scenario": scenario["name"] if is_first else "",
        "side": side["side"],
        "jobs/s": f"{rate['median']:,.0f}",
        "min … max": f"{rate['min']:,.0f} … {rate['max']:,.0f}",
        "CPU µs/job": f"{side['cpu_us_per_job']['median']:.1f}",
        "ours to this": "" if is_ours else spread_text(ratio, side["side"]),
    }


def _loops(document: Row) -> dict[str, str]:
    sides = [side for scenario in document["scenarios"] for side in scenario["sides"]]
    return {side["side"]: side["loop"] for side in sides}


def _bars(scenarios: Sequence[Row]) -> list[Row]:
    found = {
        (scenario["name"], side["side"]): side["ours_to_this"]
        for scenario in scenarios
        for side in scenario["sides"]
    }
    return [
        {
            "scenario": name,
            "side": side,
            "at_least": bar,
            "found": found[name, side],
            "verdict": _verdict(found[name, side], bar),
        }
        for name, side, bar in BARS
        if (name, side) in found
    ]


def _verdict(found: dict[str, float], bar: float) -> str:
    # Rounds on both sides of the bar say that the machine was too busy to tell.
    if found["min"] < bar <= found["max"]:
        return "unclear"
    return "met" if found["min"] >= bar else "not met"


def _bar_line(bar: Row) -> str:
    side = bar["side"]
    found, wanted = spread_text(bar["found"], side), ratio_text(bar["at_least"], side)
    return f"bar {bar['verdict']}: {bar['scenario']} is {found} of {side}, wanted {wanted}"
