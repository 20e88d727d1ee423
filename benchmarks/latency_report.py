"""Waits of all rounds, side by side, for the document and the table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.spread import spread

if TYPE_CHECKING:
    from benchmarks.latency import Waited

Row = dict[str, Any]
RANKS = ("p50", "p99", "p99.9")
# What arrived, of what was wanted; below it the producer could not keep its schedule.
_KEPT_SHARE_MIN = 0.95


def latency_part(waited: Sequence[Waited]) -> list[Row]:
    """One row per side and load, with medians over the rounds."""
    keys = dict.fromkeys((one.share, one.share_of, one.side) for one in waited)
    return [
        _row([one for one in waited if (one.share, one.share_of, one.side) == key])
        for key in sorted(keys, key=lambda key: (key[0], key[1] != "ours", key[2]))
    ]


def latency_rows(document: Row) -> list[Row]:
    """What people read: a line per load."""
    return [
        {
            "load": _load_text(row),
            "side": row["side"],
            "jobs/s": f"{row['arrived_per_s']:,.0f}",
            "jobs": f"{row['jobs']:,}",
            **{f"{rank} ms": f"{row['wait_ms'][rank]['median']:.2f}" for rank in RANKS},
            "p99 min … max": "{min:.2f} … {max:.2f}".format(**row["wait_ms"]["p99"]),
            "producer late p99": f"{row['late_ms']['p99']:.2f}",
            "schedule": "kept" if row["is_schedule_kept"] else "not kept",
        }
        for row in document["latency"]
        if not row["is_capacity"]
    ]


def capacity_text(document: Row) -> str | None:
    """What the loads are shares of."""
    full = [row for row in document["latency"] if row["is_capacity"]]
    if not full:
        return None
    said = ", ".join(f"{row['side']} {row['arrived_per_s']:,.0f} jobs/s" for row in full)
    return f"capacity, a producer with 100 callers and a worker at once: {said}"


def _row(rounds: Sequence[Waited]) -> Row:
    first = rounds[0]
    wanted = median(one.wanted_per_s for one in rounds)
    arrived = median(one.arrived_per_s for one in rounds)
    return {
        "side": first.side,
        "share": first.share,
        "share_of": first.share_of,
        "jobs": sum(one.jobs for one in rounds),
        "is_capacity": first.wanted_per_s == 0,
        "wanted_per_s": wanted,
        "arrived_per_s": arrived,
        "is_schedule_kept": arrived >= _KEPT_SHARE_MIN * wanted,
        "wait_ms": {rank: spread([one.wait_ms[rank] for one in rounds]) for rank in first.wait_ms},
        "late_ms": {r: median(one.late_ms[r] for one in rounds) for r in first.late_ms},
        "rounds": [{"wait_ms": one.wait_ms, "arrived_per_s": one.arrived_per_s} for one in rounds],
    }


def _load_text(row: Row) -> str:
    own = row["share_of"] == row["side"]
    return f"{row['share']:.0%} of {'its own' if own else row['share_of']}"
