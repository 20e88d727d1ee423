"""Which fault happens when, to whom and for how long: all of it from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

KINDS = ("kill", "stop", "cut", "restart", "oom", "flush", "skew")
CUTS = ("cut", "close", "freeze", "drop", "torn", "slam", "blackhole", "slices", "slow")
SKEWS_S = (86_400, -86_400, 30, -30)
_PAUSE_S = (0.3, 0.8)
_LASTS_LEASES = {"stop": (0.2, 3.0), "cut": (0.2, 3.0), "oom": (0.5, 2.0), "restart": (0.0, 1.0)}


@dataclass(frozen=True)
class Act:
    """One fault; `target` is a worker, `how` a kind of cut or a skew in seconds."""

    at_s: float
    kind: str
    target: int
    lasts_s: float
    how: str = ""

    def __str__(self) -> str:
        whom = f" worker {self.target}" if self.kind in ("kill", "stop", "skew") else ""
        lasts = f" for {self.lasts_s:.2f} s" if self.lasts_s else ""
        return f"{self.at_s:8.2f} s  {self.kind}{whom}{f' {self.how}' if self.how else ''}{lasts}"


def schedule(
    seed: int, *, seconds: float, acts_max: int, kinds: Sequence[str], workers: int, lease_s: float
) -> list[Act]:
    """Acts one after the other, until the time or their number is used up."""
    acts: list[Act] = []
    for act in _acts(random.Random(seed), kinds, workers, lease_s):
        if act.at_s > seconds or len(acts) == acts_max:
            break
        acts.append(act)
    return acts


def _acts(dice: random.Random, kinds: Sequence[str], workers: int, lease_s: float) -> Iterator[Act]:
    at_s = 0.0
    while True:
        at_s += dice.uniform(*_PAUSE_S)
        kind = dice.choice(kinds)
        low, high = _LASTS_LEASES.get(kind, (0.0, 0.0))
        lasts_s = round(dice.uniform(low, high) * lease_s, 2)
        yield Act(round(at_s, 2), kind, dice.randrange(workers), lasts_s, _how(dice, kind))
        at_s += lasts_s


def _how(dice: random.Random, kind: str) -> str:
    if kind == "cut":
        return dice.choice(CUTS)
    if kind == "skew":
        return str(dice.choice(SKEWS_S))
    return ""
