"""What requirements/ pins, read as pip reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
FILES = sorted(path.name for path in REQUIREMENTS.iterdir())
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")


class Pin(NamedTuple):
    """One version of one package, and the files of it that may be installed."""

    requirement: Requirement
    hashes: frozenset[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (exact,) = self.requirement.specifier
        return exact.version

    def applies_to(self, environment: dict[str, str]) -> bool:
        marker = self.requirement.marker
        return marker is None or marker.evaluate(environment)


def lines_of(name: str) -> list[str]:
    """The lines that pip sees: comments left out, continued lines joined."""
    text = (REQUIREMENTS / name).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def options_of(name: str) -> list[str]:
    """The options of a file and of those that it extends, in the order that pip meets them."""
    found: list[str] = []
    for line in lines_of(name):
        if line.startswith("-r "):
            found += options_of(line.split()[1])
        elif line.startswith("-"):
            found.append(line)
    return found


def pins_in(name: str) -> list[Pin]:
    """The pins that stand in a file itself."""
    lines = [line for line in lines_of(name) if not line.startswith("-")]
    return [
        Pin(Requirement(line.split("--hash")[0]), frozenset(HASH.findall(line))) for line in lines
    ]


def pins_with(name: str) -> list[Pin]:
    """The pins of a file and of those that it extends."""
    below = [line.split()[1] for line in lines_of(name) if line.startswith("-r ")]
    return [*(pin for other in below for pin in pins_with(other)), *pins_in(name)]
