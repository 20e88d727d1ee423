"""Histograms as plain arrays, filled by the batch: sorting many numbers beats placing each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

# Below this many, a search per number is cheaper than a sort and a search per bound.
_SORT_FROM = 16


class Histogram:
    """Counts of numbers by upper bound, the bound itself included; the last count has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add_many(self, numbers: Sequence[int]) -> None:
        self.total += sum(numbers)
        if len(numbers) < _SORT_FROM:
            for number in numbers:
                self.counts[bisect_left(self.bounds, number)] += 1
            return
        self._add_sorted(sorted(numbers))

    def _add_sorted(self, numbers: list[int]) -> None:
        counts = self.counts
        highest = numbers[-1]
        placed = 0
        for at, bound in enumerate(self.bounds):
            if highest <= bound:
                counts[at] += len(numbers) - placed
                return
            reached = bisect_right(numbers, bound, placed)
            counts[at] += reached - placed
            placed = reached
        counts[-1] += len(numbers) - placed

    def cumulative(self) -> list[int]:
        """How many were at or below each bound; the last is how many there were."""
        return list(accumulate(self.counts))

    def copy(self) -> Histogram:
        twin = Histogram(self.bounds)
        twin.counts = self.counts.copy()
        twin.total = self.total
        return twin
