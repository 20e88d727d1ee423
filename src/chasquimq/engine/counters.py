"""Running totals of a worker, for health and for the curious."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Each attempt is counted once, when its outcome is known."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    buried: int = 0
    handed_back: int = 0
    # An outcome of ours that somebody else's outcome preceded.
    stale_outcomes: int = 0
    # The door said "gone" to a second send: the first one may have done it.
    unproven_outcomes: int = 0
    leases_lost: int = 0
