"""A whole run: scenarios, latency and growth on one server, with one count of steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.growth import Grown, Growth, GrowthSettings
from benchmarks.latency import Latency, LatencySettings, Waited
from benchmarks.rounds import Bench, BenchSettings, Measured, OnStep

if TYPE_CHECKING:
    from benchmarks.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All figures of a run, and which peers could not be run at all."""

    measured: list[Measured]
    waited: list[Waited]
    grown: list[Grown]
    missing: dict[str, str]
    # What could not be measured of ours, or of the original beyond the scenarios.
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
