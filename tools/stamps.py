"""What .venv should hold, and how it is known that it does; imported on every call, so only os."""

from __future__ import annotations

import os

# Each level holds all that the levels before it hold.
PINS = {
    "run": ("core.txt", "run.txt"),
    "spark": ("core.txt", "run.txt", "spark.txt"),
    "test": ("core.txt", "run.txt", "spark.txt", "test.txt"),
}


def is_ready(root: str, level: str, version: str) -> bool:
    """True: what is pinned for this level is installed for this Python."""
    try:
        with open(stamp_path(root, level), encoding="utf-8") as stamp:
            return stamp.read() == wanted_stamp(root, level, version)
    except OSError:
        return False


def stamp_path(root: str, level: str) -> str:
    return os.path.join(root, ".venv", f"chasqui-{level}.stamp")


def wanted_stamp(root: str, level: str, version: str) -> str:
    """The Python version and the pins themselves: a changed pin is a changed stamp."""
    parts = [f"# python {version}\n"]
    for name in PINS[level]:
        with open(os.path.join(root, "requirements", name), encoding="utf-8") as pins:
            parts.append(pins.read())
    return "".join(parts)


def venv_python(root: str) -> str:
    return os.path.join(root, ".venv", "bin", "python")
