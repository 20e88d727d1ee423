"""Measures how long jobs wait from add to start, at shares of what a side can do.

A producer and a worker, each in its own process. Capacity comes first, in every round: as many
adds as answers allow, with the worker on the other end. Then jobs arrive by a schedule that waits
for nobody, so that a side that stalls pays for every job that was due meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.child import BenchFailed, Child, Side
from benchmarks.rounds import OURS, turns
from benchmarks.scenario import CONCURRENCY, Plan, spread
from benchmarks.server import preload

if TYPE_CHECKING:
    from benchmarks.rounds import Bench, OnStep

SHARES = (0.1, 0.5, 0.9)
CALLERS = 100
_WAIT_S = 60
Waits = dict[str, float]
Row = dict[str, Any]
RANKS = ("p50", "p99", "p99.9")
# What arrived, of what was wanted; below it the producer could not keep its schedule.
_KEPT_SHARE_MIN = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """How often, how long each, and at which shares of capacity."""

    rounds: int = 3
    seconds: float = 3.0
    shares: Sequence[float] = SHARES

    @classmethod
    def quick(cls) -> LatencySettings:
        return cls(rounds=1, seconds=1.5, shares=(0.5,))


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """What the producer says: how late it was itself is part of every wait."""

    jobs: int
    seconds: float
    late_ms: Waits


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker says."""

    jobs: int
    seconds: float
    wait_ms: Waits


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of one side."""

    side: str
    # A share of whose capacity; 1 and its own: the capacity itself, as fast as answers come.
    share: float
    share_of: str
    jobs: int
    wanted_per_s: float
    arrived_per_s: float
    wait_ms: Waits
    late_ms: Waits


class Latency:
    """Ours and ChasquiMQ (Rust), in turns."""

    def __init__(self, bench: Bench, settings: LatencySettings) -> None:
        self._bench = bench
        self._settings = settings
        self._failed_sides: set[str] = set()
        original = bench.original()
        self._sides = [bench.own_side(OURS), *([original] if original else [])]

    def step_count(self) -> int:
        per_side = 1 + len(self._settings.shares)
        others = len(self._settings.shares) * (len(self._sides) - 1)
        return self._settings.rounds * (per_side * len(self._sides) + others)

    def run(self, on_step: OnStep) -> list[Waited]:
        """All stretches of all rounds; a side that fails is named in `failed` and left out."""
        stretches: list[Waited] = []
        for number in range(self._settings.rounds):
            stretches += self._round(number, on_step)
        return [one for one in stretches if one.side not in self._failed_sides]

    def _round(self, number: int, on_step: OnStep) -> list[Waited]:
        found: list[Waited] = []
        capacity: dict[str, float] = {}
        for side in turns(self._sides, number):
            on_step(f"latency: capacity of {side.name}, round {number + 1}")
            with self._noting_failure(side):
                full = self._capacity(side)
                capacity[side.name] = full.arrived_per_s
                found.append(full)
        for share in self._settings.shares:
            for side, whose in self._pairs(number):
                on_step(f"latency: {side.name} at {share:.0%} of {whose}, round {number + 1}")
                if side.name in self._failed_sides or whose not in capacity:
                    continue
                with self._noting_failure(side):
                    found.append(self._stretch(side, share, whose, capacity[whose] * share))
        return found

    @contextmanager
    def _noting_failure(self, side: Side) -> Generator[None]:
        try:
            yield
        except BenchFailed as failed:
            self._failed_sides.add(side.name)
            self._bench.failed[f"latency of {side.name}"] = str(failed)

    def _pairs(self, number: int) -> list[tuple[Side, str]]:
        """Each at its own load, and ours at that of ChasquiMQ (Rust), where figures compare directly."""
        pairs = [(side, side.name) for side in turns(self._sides, number)]
        ours = self._sides[0]
        return pairs + [(ours, side.name) for side in self._sides[1:]]

    def _capacity(self, side: Side) -> Waited:
        arrived, started = self._exchange(side, self._plan(0.0))
        per_s = started.jobs / max(started.seconds, arrived.seconds)
        return Waited(
            side=side.name, share=1.0, share_of=side.name, jobs=started.jobs, wanted_per_s=0.0, arrived_per_s=per_s,
            wait_ms=started.wait_ms, late_ms=arrived.late_ms,
        )  # fmt: skip

    def _stretch(self, side: Side, share: float, whose: str, per_s: float) -> Waited:
        arrived, started = self._exchange(side, self._plan(per_s))
        return Waited(
            side=side.name, share=share, share_of=whose, jobs=started.jobs, wanted_per_s=per_s,
            arrived_per_s=arrived.jobs / arrived.seconds,
            wait_ms=started.wait_ms, late_ms=arrived.late_ms,
        )  # fmt: skip

    def _plan(self, per_s: float) -> Plan:
        return Plan(
            act="arrive", jobs=0, url=self._bench.target.url, loop=self._bench.own_loop,
            wait_s=_WAIT_S + int(self._settings.seconds), in_flight=CALLERS,
            concurrency=CONCURRENCY, arrivals_per_s=per_s, arrivals_s=self._settings.seconds,
        )  # fmt: skip

    def _exchange(self, side: Side, plan: Plan) -> tuple[Arrived, Started]:
        self._bench.target.flush()
        # The worker says that it is there when it runs this one.
        asyncio.run(preload(plan.url, 1))
        plan = msgspec.structs.replace(plan, loop=side.loop)
        with Child(side, msgspec.structs.replace(plan, act="start")) as worker:
            worker.until_ready()
            with Child(side, plan) as producer:
                arrived = producer.answer(Arrived)
            worker.send(str(arrived.jobs))
            started = worker.answer(Started)
        if started.jobs != arrived.jobs:
            raise BenchFailed(f"{side.name} must start {arrived.jobs} jobs, it was {started.jobs}")
        return arrived, started


# ── what people read ──────────────────────────────────────────────────────────────────────────────


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
