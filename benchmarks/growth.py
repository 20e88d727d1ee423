"""What grows: backlog, delayed set, payload and processes; and what leases cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from benchmarks.child import BenchFailed, Side
from benchmarks.filling import FAR_MS, preload
from benchmarks.payload import KIB, SMALL_BYTES, payload_of
from benchmarks.rounds import OURS
from benchmarks.scenario import DELAYED, RUN_ONCE, Figures, Plan, Work, wait_s
from benchmarks.target import ask

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
