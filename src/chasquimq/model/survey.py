"""What was seen of many queues at once, and what hid the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chasquimq.errors import StoreError
from chasquimq.model.json_value import ToDict
from chasquimq.model.snapshot import Snapshot, WrongType


@dataclass(slots=True)
class Survey(ToDict):
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

    def to_dict(self) -> dict[str, Any]:
        """What was seen, and why the rest was not, in words."""
        return {
            "snapshots": [one.to_dict() for one in self.snapshots],
            "broken": [one.to_dict() for one in self.broken],
            "broken_queues": list(self.broken_queues),
            "unseen": {queue: str(why) for queue, why in self.unseen.items()},
            "missed": [str(why) for why in self.missed],
        }
