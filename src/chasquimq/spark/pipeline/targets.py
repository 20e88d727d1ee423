"""Which target a queue is held against: the strictest of those of the names seen in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from chasquimq.spark.lake.tables import GOLD_MINUTE

if TYPE_CHECKING:
    from chasquimq.spark.lake.lake import Lake

ANY_NAME: Final = "*"
# Names of a queue seldom change, and finding them reads a day of a table.
_LOOK_AGAIN_S: Final = 60.0


class Targets:
    """The targets of names, by the queues that have jobs of these names."""

    def __init__(self, lake: Lake, targets_ms: Mapping[str, int]) -> None:
        self._lake = lake
        self._targets_ms = targets_ms
        self._names: dict[str, set[str]] = {}
        self._look_again_s = 0.0

    def of(self, queue: str) -> int | None:
        """The strictest target in a queue; None: it has none, as far as is known."""
        if not self._targets_ms:
            return None
        every = self._targets_ms.get(ANY_NAME)
        names = self._names_of(queue)
        found = [self._targets_ms.get(name, every) for name in names] or [every]
        return min((one for one in found if one is not None), default=None)

    def _names_of(self, queue: str) -> set[str]:
        if time.monotonic() >= self._look_again_s:
            self._names = _seen_names(self._lake)
            self._look_again_s = time.monotonic() + _LOOK_AGAIN_S
        return self._names.get(queue, set())


def _seen_names(lake: Lake) -> dict[str, set[str]]:
    """The names in each queue on the last day that has any."""
    days = lake.days(GOLD_MINUTE.name)
    if not days:
        return {}
    pairs = lake.rows(GOLD_MINUTE.name, ["queue", "name"], days[-1])
    names: dict[str, set[str]] = {}
    for row in pairs.group_by(["queue", "name"]).aggregate([]).to_pylist():
        names.setdefault(row["queue"], set()).add(row["name"])
    return names
