"""What a look at a server or a queue found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chasquimq.model.json_value import ToDict

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding(ToDict):
    """One check: `found` says what is so, `remedy` what to do; trouble always has a remedy."""

    check: str
    level: Level
    found: str
    remedy: str = ""
    queue: str | None = None

    @property
    def is_trouble(self) -> bool:
        return self.level in ("warning", "error")


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def note(check: str, found: str) -> Finding:
    """Worth knowing, nothing to do."""
    return Finding(check, "note", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    """It will do harm if nobody looks."""
    return Finding(check, "warning", found, remedy)


def error(check: str, found: str, remedy: str) -> Finding:
    """It does harm already, or will at the next restart."""
    return Finding(check, "error", found, remedy)


def size_text(size_bytes: float) -> str:
    """A number of bytes in the unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
