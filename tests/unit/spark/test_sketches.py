"""Sketches that compaction merged: how far their ranks are off, without a JVM."""

from __future__ import annotations

import numpy as np
from datasketches import kll_doubles_sketch

from chasquimq.spark.lake.sketches import count_of, merged, quantiles

PARTS, VALUES_PER_PART, TRIALS = 300, 200, 30
RANKS = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]


def sketch_of(values) -> bytes:
    sketch = kll_doubles_sketch()
    sketch.update(values)
    return sketch.serialize()


def rank_errors(rng: np.random.Generator) -> list[float]:
    values = rng.exponential(5.0, PARTS * VALUES_PER_PART)
    whole = merged([sketch_of(part) for part in np.split(values, PARTS)])
    assert count_of(whole) == len(values)
    ordered = np.sort(values)
    found = quantiles([whole], RANKS)
    reached = np.searchsorted(ordered, found, side="right") / len(ordered)
    return [abs(at - rank) for at, rank in zip(reached, RANKS, strict=True)]


def test_ranks_of_many_parts_that_were_merged_are_off_by_one_and_a_half_percent_at_most():
    rng = np.random.default_rng(11)

    errors = [error for _ in range(TRIALS) for error in rank_errors(rng)]

    assert max(errors) < 0.015
