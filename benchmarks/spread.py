"""Medians with their lowest and highest round, and what a stretch was bound by."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.scenario import Figures

# Of one core: whoever is this busy has nothing left to give.
BUSY_SHARE_MIN = 0.85
SERVER, CLIENT, NEITHER = "server", "client", "neither"


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def bound_by(figures: Sequence[Figures], processes: int = 1) -> str | None:
    """Who had no processor time left: the server's thread, the measured process, or neither.

    Both at once is told as the server: no client could have been faster.
    """
    shares = [one.server_cpu_share for one in figures if one.server_cpu_share is not None]
    if not shares:
        return None
    if median(shares) >= BUSY_SHARE_MIN:
        return SERVER
    own = median(one.cpu_seconds / one.seconds / processes for one in figures)
    return CLIENT if own >= BUSY_SHARE_MIN else NEITHER
