"""What a metric is: its name, kind, labels, unit and meaning."""

from __future__ import annotations

from typing import Literal

import msgspec

FamilyKind = Literal["counter", "gauge", "histogram"]
Unit = Literal["", "seconds", "ms", "jobs", "entries", "transitions", "outcomes", "rows", "loops"]


class Family(msgspec.Struct, frozen=True):
    """A metric; numbers are kept as integers and divided by `per_unit` when shown.

    `bounds` are the buckets of a histogram, in the integers that are kept. `has_twin`: the same is
    told by another metric in base units, and this one is here for those who know the original.
    """

    name: str
    kind: FamilyKind
    help: str
    labels: tuple[str, ...] = ()
    unit: Unit = ""
    per_unit: int = 1
    bounds: tuple[int, ...] = ()
    has_twin: bool = False
