"""What was seen of many queues at once, and what hid the others."""

from __future__ import annotations

from typing import NamedTuple

from chasquimq.errors import StoreError
from chasquimq.model.snapshot import Snapshot, WrongType


class Survey(NamedTuple):
    """Snapshots of many queues, keys that kept others from being looked at, and those others.

    `unseen` are the queues of masters that do not answer, and why; `missed` is why others, whose
    names nobody could list, are not here at all.
    """

    snapshots: list[Snapshot]
    broken: list[WrongType]
    broken_queues: list[str]
    unseen: dict[str, StoreError]
    missed: list[StoreError]

    @property
    def silences(self) -> list[str]:
        """What kept masters from answering, each once."""
        return list(dict.fromkeys(map(str, (*self.missed, *self.unseen.values()))))
