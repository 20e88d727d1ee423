"""Turns figures into a document for programs: machine, versions, ratios, and which aims were met."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from benchmarks.growth import growth_part
from benchmarks.latency import latency_part
from benchmarks.peer import PEERS
from benchmarks.rounds import LIMIT, OURS
from benchmarks.scenario import CONCURRENCY, bound_by, spread
from chasquimq import version

if TYPE_CHECKING:
    from benchmarks.rounds import BenchSettings, Measured
    from benchmarks.run import Outcome
    from benchmarks.scenario import Figures
    from benchmarks.server import Target

QUIET_LOAD_MAX = 1.5
_PACKAGES = ("hiredis", "msgspec", "ormsgpack", "redis", "uvloop")
Row = dict[str, Any]
ORIGINAL, BEST_OTHER = "original", "best other"


def describe_machine() -> dict[str, Any]:
    """Processor, cores this process may use, system, and how busy it is before we add to it."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def quiet_text(machine: dict[str, Any]) -> str:
    """How busy the machine was before the run, with a warning when it was too busy to trust."""
    load = machine["load_average"][0]
    said = f"load average before the run: {load:.1f} on {machine['cores']} cores"
    if load <= QUIET_LOAD_MAX:
        return said
    return f"warning: {said}; above {QUIET_LOAD_MAX} no figure is a peak and ratios may be off"


def own_versions() -> dict[str, str]:
    """This package and what its speed rests on; what is not installed is left out."""
    versions = {"chasquimq-py": version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version_of(package)
    return versions


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# ── aims ──────────────────────────────────────────────────────────────────────────────────────────


class Bar(NamedTuple):
    """How many times the rate of a side; `of` is its scenario where it cannot do ours."""

    scenario: str
    side: str
    at_least: float
    of: str = ""


BARS = (
    Bar("consume-100", ORIGINAL, 12.0),
    Bar("consume-100", BEST_OTHER, 60.0),
    Bar("consume-100", LIMIT, 0.75),
    Bar("consume-100-events", ORIGINAL, 8.0),
    Bar("consume-100-events", LIMIT, 0.7),
    Bar("consume-100-history", ORIGINAL, 10.0, of="consume-100"),
    Bar("consume-100-history", BEST_OTHER, 50.0, of="consume-100"),
    Bar("consume-100-history", LIMIT, 0.7),
    Bar("consume-results", ORIGINAL, 6.0),
    Bar("consume-results", BEST_OTHER, 15.0),
    Bar("consume-results", LIMIT, 0.6),
    Bar("add-bulk-50", ORIGINAL, 2.2),
    Bar("add-bulk-50", BEST_OTHER, 12.0),
    Bar("add-bulk-50", LIMIT, 0.6),
    Bar("add-bulk-50x8", ORIGINAL, 4.0),
    Bar("add-bulk-50x8", BEST_OTHER, 20.0, of="add-bulk-50"),
    Bar("add-bulk-50x8", LIMIT, 0.6),
    Bar("add-bulk-1000", ORIGINAL, 5.0),
    Bar("add-bulk-1000", LIMIT, 0.6),
    Bar("add-concurrent", ORIGINAL, 4.0),
    Bar("add-concurrent", BEST_OTHER, 8.0),
    Bar("add-concurrent", LIMIT, 0.5),
    Bar("add", ORIGINAL, 1.5),
    Bar("add", BEST_OTHER, 1.5),
    Bar("add", LIMIT, 0.75),
    Bar("delayed-end-to-end", ORIGINAL, 5.0),
    Bar("delayed-end-to-end", LIMIT, 0.6),
    Bar("retry-throughput", ORIGINAL, 5.0),
    Bar("retry-throughput", LIMIT, 0.5),
)


def judged(scenarios: Sequence[Row]) -> list[Row]:
    """Every bar that the run has figures for, with what was found."""
    sides = {one["name"]: {side["side"]: side for side in one["sides"]} for one in scenarios}
    return list(_judged(sides))


def _judged(sides: Mapping[str, Mapping[str, Row]]) -> Iterator[Row]:
    for bar in BARS:
        ours = sides.get(bar.scenario, {}).get("ours")
        others = sides.get(bar.of or bar.scenario, {})
        name = _best_other(others) if bar.side == BEST_OTHER else bar.side
        if ours is None or name is None or name not in others:
            continue
        pairs = zip(_rates(ours), _rates(others[name]), strict=True)
        found = spread([mine / rate for mine, rate in pairs])
        yield {
            "scenario": bar.scenario,
            "side": name,
            "of": bar.of,
            "at_least": bar.at_least,
            "found": found,
            "verdict": verdict(found, bar.at_least),
        }


def _best_other(others: Mapping[str, Row]) -> str | None:
    """The fastest of the other packages for Python."""
    known = [PEERS[name] for name in others if name in PEERS]
    names = [one.side for one in known if not one.is_original and one.loop != "node"]
    return max(names, key=lambda name: others[name]["jobs_per_s"]["median"], default=None)


def _rates(side: Row) -> list[float]:
    return [one["jobs_per_s"] for one in side["rounds"]]


def verdict(found: dict[str, float], bar: float) -> str:
    # Rounds on both sides of the bar say that the machine was too busy to tell.
    if found["min"] < bar <= found["max"]:
        return "unclear"
    return "met" if found["min"] >= bar else "not met"


# ── the document ──────────────────────────────────────────────────────────────────────────────────


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
        # A server that is not ours was not asked.
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
    """Ours and what belongs to it first, then ChasquiMQ (Rust), then the fastest of the others."""
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
