"""What .venv should hold, and how it is known that it does; imported on every call, so only os."""

from __future__ import annotations

import os

# Each level of .venv holds all that the levels before it hold.
_RUN = ("core.txt", "worker.txt", "run.txt")
_SQL = (*_RUN, "sql.txt")
_SPARK = (*_SQL, "spark-build.txt", "spark.txt")
PINS = {
    "run": _RUN,
    "sql": _SQL,
    "spark": _SPARK,
    "test": (*_SPARK, "build.txt", "test.txt", "docs.txt"),
}
# The tools of a release have an environment of their own: .venv stays as users have it.
RELEASE = "release"
RELEASE_PINS = ("release.txt",)


def is_ready(root: str, level: str, version: str) -> bool:
    """True: what is pinned for this level is installed for this Python."""
    try:
        with open(stamp_path(root, level), encoding="utf-8") as stamp:
            return stamp.read() == wanted_stamp(root, level, version)
    except OSError:
        return False


def stamp_path(root: str, level: str) -> str:
    return os.path.join(venv_path(root, level), f"chasqui-{level}.stamp")


def wanted_stamp(root: str, level: str, version: str) -> str:
    """The Python version and the pins themselves: a changed pin is a changed stamp."""
    parts = [f"# python {version}\n"]
    for name in pins_of(level):
        with open(os.path.join(root, "requirements", name), encoding="utf-8") as pins:
            parts.append(pins.read())
    return "".join(parts)


def pins_of(level: str) -> tuple[str, ...]:
    """The files in requirements/ that say what a level holds."""
    return RELEASE_PINS if level == RELEASE else PINS[level]


def venv_path(root: str, level: str = "run") -> str:
    return os.path.join(root, ".venv-release" if level == RELEASE else ".venv")


def venv_python(root: str, level: str = "run") -> str:
    return os.path.join(venv_path(root, level), "bin", "python")
