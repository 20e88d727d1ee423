"""What ours must reach, and whether a run shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.peer import PEERS
from benchmarks.spread import spread

Row = dict[str, Any]
LIMIT, ORIGINAL, BEST_OTHER = "limit", "original", "best other"


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
