"""Knows every list of public names, and the file that it is frozen in."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path

from surface.commands import commands
from surface.python_api import error_tree, modules, signatures
from surface.wire_names import keys, loggers, metrics, records, variables

FROZEN = Path(__file__).with_name("frozen")
RENEW = "python -m tests.surface --write"
LISTS: dict[str, Callable[[], Iterator[str]]] = {
    "modules": modules,
    "signatures": signatures,
    "errors": error_tree,
    "commands": commands,
    "metrics": metrics,
    "keys": keys,
    "loggers": loggers,
    "records": records,
    "variables": variables,
}


def path_of(name: str) -> Path:
    """The file that a list is frozen in."""
    return FROZEN / f"{name}.txt"


def text_of(name: str) -> str:
    """A list as it is now, as its file would have it."""
    return "\n".join(LISTS[name]()).strip("\n") + "\n"


def difference(name: str) -> str:
    """What changed since a list was frozen; empty: nothing."""
    path = path_of(name)
    before = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(
        before.splitlines(), text_of(name).splitlines(), "frozen", "now", n=2, lineterm=""
    )
    return "\n".join(lines)
