"""Measures what grows (backlog, delayed set, payload, processes) and what leases cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from benchmarks.child import BenchFailed, Side
from benchmarks.rounds import OURS
from benchmarks.scenario import (
    DELAYED,
    KIB,
    RUN_ONCE,
    SERVER,
    SMALL_BYTES,
    Figures,
    Plan,
    Work,
    bound_by,
    payload_of,
    spread,
    wait_s,
)
from benchmarks.server import FAR_MS, ask, preload

if TYPE_CHECKING:
    from benchmarks.rounds import Bench, OnStep

Dimension = Literal["backlog", "delayed", "payload", "processes", "leases"]
DIMENSIONS: tuple[Dimension, ...] = ("backlog", "delayed", "payload", "processes", "leases")
MILLION = 1_000_000
ROUNDS = 3
# A fill of so many takes longer than what is measured then.
_ROUNDS_OF_LARGE = 1
_OURS_JOBS, _ORIGINAL_JOBS = 100_000, 20_000
_BYTES_MAX = 200 * KIB * KIB
_BATCH = 50
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthSettings:
    """Which dimensions, how far, how often."""

    dimensions: Sequence[Dimension] = DIMENSIONS
    sizes: Sequence[int] = (10_000, 100_000, MILLION)
    payloads_bytes: Sequence[int] = (SMALL_BYTES, KIB, 64 * KIB)
    processes: Sequence[int] = (1, 2, 4)
    # As it is by default, off, and so short that leases are renewed three times a second.
    leases_ms: Sequence[int] = (30_000, 0, 1_000)
    rounds: int = ROUNDS
    jobs_max: int = 2 * _OURS_JOBS

    @classmethod
    def small(cls, dimensions: Sequence[Dimension], jobs: int) -> GrowthSettings:
        """The same steps with so many jobs at most, once each."""
        sizes = sorted({min(size, jobs) for size in (10_000, 100_000)})
        return cls(dimensions=dimensions, sizes=sizes, rounds=1, jobs_max=jobs)


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one side at one size."""

    dimension: Dimension
    size: int
    side: str
    figures: Figures
    # Bulks of a thousand by ours when the queue was filled; bulks of 50 where payloads grow.
    add_jobs_per_s: float | None = None
    memory_bytes_per_job: float | None = None


class Growth:
    """Every dimension, size by size, sides in turns."""

    def __init__(self, bench: Bench, settings: GrowthSettings) -> None:
        self._bench = bench
        self._settings = settings
        self._ours = bench.own_side(OURS)
        self._original = bench.original()

    def step_count(self) -> int:
        return sum(1 for _ in self._steps())

    def run(self, on_step: OnStep) -> list[Grown]:
        """All measurements; one that fails is named in `failed` and left out."""
        found: list[Grown] = []
        for dimension, size, side in self._steps():
            on_step(f"growth: {dimension} {size:,}, {side.name}")
            try:
                found.append(self._measure(dimension, size, side))
            except BenchFailed as failed:
                self._bench.failed[f"growth-{dimension} {size:,} of {side.name}"] = str(failed)
        return found

    def _steps(self) -> Iterator[tuple[Dimension, int, Side]]:
        for dimension in self._settings.dimensions:
            sizes = self._sizes(dimension)
            for number in range(self._settings.rounds):
                for size in sizes:
                    if size >= MILLION and number >= _ROUNDS_OF_LARGE:
                        continue
                    for side in self._sides(dimension):
                        yield dimension, size, side

    def _sizes(self, dimension: Dimension) -> Sequence[int]:
        match dimension:
            case "payload":
                return self._settings.payloads_bytes
            case "processes":
                return self._settings.processes
            case "leases":
                return self._settings.leases_ms
            case _:
                return self._settings.sizes

    def _sides(self, dimension: Dimension) -> list[Side]:
        # Each keeps books of its own for delayed jobs, and only ours can leave its leases.
        is_ours_alone = dimension in ("delayed", "leases")
        return [self._ours, *([self._original] if self._original and not is_ours_alone else [])]

    def _measure(self, dimension: Dimension, size: int, side: Side) -> Grown:
        self._bench.target.flush()
        match dimension:
            case "backlog":
                return self._at_backlog(size, side)
            case "delayed":
                return self._at_delayed(size)
            case "payload":
                return self._at_payload(size, side)
            case "processes":
                return self._with_processes(size, side)
            case "leases":
                return self._with_lease(size)

    def _at_backlog(self, size: int, side: Side) -> Grown:
        """Run a part of what waits; the rest stays."""
        plan = self._plan(side, jobs_max=size)
        filled_s, memory = self._fill(size, RUN_ONCE, plan.payload)
        figures = self._bench.watched(side, msgspec.structs.replace(plan, left=size - plan.jobs))
        return Grown(
            dimension="backlog", size=size, side=side.name, figures=figures,
            add_jobs_per_s=size / filled_s, memory_bytes_per_job=memory,
        )  # fmt: skip

    def _at_delayed(self, size: int) -> Grown:
        """Promote and run what is due beside many that are not."""
        plan = self._plan(self._ours, jobs_max=size, work=Work(delay_ms=1))
        filled_s, memory = self._fill(size, Work(delay_ms=FAR_MS), plan.payload)
        asyncio.run(preload(plan.url, plan.jobs, plan.work))
        figures = self._bench.watched(self._ours, plan)
        if (left := ask(plan.url, "ZCARD", DELAYED)) != size:
            raise BenchFailed(f"ours must leave {size} delayed jobs alone, {left} are there")
        return Grown(
            dimension="delayed", size=size, side=OURS, figures=figures,
            add_jobs_per_s=size / filled_s, memory_bytes_per_job=memory,
        )  # fmt: skip

    def _at_payload(self, size: int, side: Side) -> Grown:
        plan = self._plan(side, jobs_max=max(_BATCH, _BYTES_MAX // size), payload_bytes=size)
        add = msgspec.structs.replace(plan, act="add", batch=_BATCH)
        added = self._bench.watched(side, add)
        self._bench.target.flush()
        _, memory = self._fill(plan.jobs, RUN_ONCE, plan.payload)
        figures = self._bench.watched(side, plan)
        return Grown(
            dimension="payload", size=size, side=side.name, figures=figures,
            add_jobs_per_s=added.jobs_per_s, memory_bytes_per_job=memory,
        )  # fmt: skip

    def _with_processes(self, count: int, side: Side) -> Grown:
        plan = self._plan(side, jobs_max=self._settings.jobs_max, factor=2)
        self._fill(plan.jobs, RUN_ONCE, plan.payload)
        figures = self._bench.watched(side, msgspec.structs.replace(plan, processes=count))
        if figures.jobs != plan.jobs:
            raise BenchFailed(f"{side.name} must run {plan.jobs} jobs once, it was {figures.jobs}")
        return Grown(dimension="processes", size=count, side=side.name, figures=figures)

    def _with_lease(self, lease_ms: int) -> Grown:
        plan = self._plan(self._ours, jobs_max=self._settings.jobs_max, factor=2)
        self._fill(plan.jobs, RUN_ONCE, plan.payload)
        figures = self._bench.watched(self._ours, msgspec.structs.replace(plan, lease_ms=lease_ms))
        return Grown(dimension="leases", size=lease_ms, side=OURS, figures=figures)

    def _plan(
        self,
        side: Side,
        *,
        jobs_max: int,
        factor: int = 1,
        work: Work = RUN_ONCE,
        payload_bytes: int = SMALL_BYTES,
    ) -> Plan:
        usual = _ORIGINAL_JOBS if side.is_original else _OURS_JOBS
        jobs = min(factor * usual, jobs_max, self._settings.jobs_max)
        return Plan(
            act="consume", jobs=jobs, url=self._bench.target.url, loop=side.loop,
            wait_s=wait_s(jobs), work=work, payload=payload_of(payload_bytes),
        )  # fmt: skip

    def _fill(self, size: int, work: Work, payload: dict[str, str]) -> tuple[float, float]:
        """Seconds that it took, and what the server keeps for each job."""
        target = self._bench.target
        empty_bytes = target.used_memory_bytes()
        took_s = asyncio.run(preload(target.url, size, work, payload))
        return took_s, (target.used_memory_bytes() - empty_bytes) / size


# ── what people read ──────────────────────────────────────────────────────────────────────────────


def growth_part(grown: Sequence[Grown]) -> list[Row]:
    """One row per dimension, size and side, with medians over the rounds."""
    keys = dict.fromkeys((one.dimension, one.side, one.size) for one in grown)
    return [
        _row([one for one in grown if (one.dimension, one.side, one.size) == key]) for key in keys
    ]


def growth_rows(document: Row) -> list[Row]:
    """What people read: a line per size."""
    return [
        {
            "what grows": _size_text(row),
            "side": row["side"],
            "jobs/s": f"{row['jobs_per_s']['median']:,.0f}",
            "min … max": "{min:,.0f} … {max:,.0f}".format(**row["jobs_per_s"]),
            "added/s": _number(row["add_jobs_per_s"]),
            "bytes/job": _number(row["memory_bytes_per_job"]),
            "CPU µs/job": f"{row['cpu_us_per_job']:.1f}",
            "server CPU": _share(row["server_cpu_share"]),
            "bound by": row["bound_by"] or "-",
        }
        for row in document["growth"]
    ]


def server_limits(document: Row) -> list[str]:
    """Where the server becomes the limit: the first size of each dimension and side."""
    found: dict[tuple[str, str], str] = {}
    for row in document["growth"]:
        if row["bound_by"] == SERVER:
            said = f"{_size_text(row)} ({_share(row['server_cpu_share'])} of a core)"
            found.setdefault((row["dimension"], row["side"]), said)
    return [f"the server is the limit of {side} from: {said}" for (_, side), said in found.items()]


def _row(rounds: Sequence[Grown]) -> Row:
    first = rounds[0]
    figures = [one.figures for one in rounds]
    processes = first.size if first.dimension == "processes" else 1
    return {
        "dimension": first.dimension,
        "size": first.size,
        "side": first.side,
        "jobs": first.figures.jobs,
        "jobs_per_s": spread([one.jobs_per_s for one in figures]),
        "cpu_us_per_job": median(one.cpu_us_per_job for one in figures),
        "server_cpu_share": _median([one.server_cpu_share for one in figures]),
        "bound_by": bound_by(figures, processes),
        "add_jobs_per_s": _median([one.add_jobs_per_s for one in rounds]),
        "memory_bytes_per_job": _median([one.memory_bytes_per_job for one in rounds]),
        "rounds": [one.jobs_per_s for one in figures],
    }


def _median(values: Sequence[float | None]) -> float | None:
    seen = [value for value in values if value is not None]
    return median(seen) if seen else None


def _size_text(row: Row) -> str:
    size = row["size"]
    match row["dimension"]:
        case "payload":
            return f"payload {size // KIB} KiB" if size >= KIB else f"payload {size} B"
        case "processes":
            return f"{size} worker process{'es' if size > 1 else ''}"
        case "leases":
            return f"leases of {size / 1000:g} s" if size else "leases not renewed"
        case dimension:
            return f"{dimension} {size:,}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
