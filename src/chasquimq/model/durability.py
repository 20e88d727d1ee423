"""How safe an add must be before it counts as done."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chasquimq.errors import SettingsError

_RULE = '"server", "fsync" or "replica:n" with n of at least 1'
_REPLICA = re.compile(r"replica:([1-9]\d{0,3})")


@dataclass(frozen=True, slots=True)
class Durability:
    """`server` trusts the server's answer; the others wait for a disk or for replicas."""

    is_on_disk: bool = False
    replica_count: int = 0

    @property
    def waits(self) -> bool:
        return self.is_on_disk or self.replica_count > 0

    def __str__(self) -> str:
        if self.is_on_disk:
            return "fsync"
        return f"replica:{self.replica_count}" if self.replica_count else "server"


SERVER = Durability()


def parse_durability(text: str | Durability | None) -> Durability:
    """The class of that name."""
    if text is None:
        return SERVER
    if isinstance(text, Durability):
        return text
    if text == "server":
        return SERVER
    if text == "fsync":
        return Durability(is_on_disk=True)
    # Callers lie.
    is_text = isinstance(text, str)  # pyright: ignore[reportUnnecessaryIsInstance]
    found = _REPLICA.fullmatch(text) if is_text else None
    if found is None:
        raise SettingsError("durability", text, _RULE)
    return Durability(replica_count=int(found[1]))
