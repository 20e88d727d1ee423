"""The commands that each of our scripts runs, read from its text."""

from __future__ import annotations

from pathlib import Path

from chasquimq.store.net import abilities as rights
from chasquimq.store.net.script import script

SCRIPTS = Path(__file__).parents[2] / "src/chasquimq/store/scripts"


def script_names() -> list[str]:
    return sorted(path.stem for path in SCRIPTS.glob("*.lua"))


def commands_of(name: str) -> list[str]:
    """The commands of one script, as an ACL rule names them."""
    return sorted(rights.commands_of(script(name).text))
