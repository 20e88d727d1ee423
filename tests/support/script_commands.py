"""The commands that each of our scripts runs, read from its text."""

from __future__ import annotations

import re
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "src/chasquimq/store/scripts"
_CALLS = re.compile(r"\b(?:redis\.p?call|call|try)\('([A-Z]+)'(?:, '([A-Z]+)')?")
_CONTAINERS = {"XGROUP", "XINFO"}


def script_names() -> list[str]:
    return sorted(path.stem for path in SCRIPTS.glob("*.lua"))


def commands_of(name: str) -> list[str]:
    """The commands of one script, as an ACL rule names them."""
    text = (SCRIPTS / f"{name}.lua").read_text("utf-8")
    return sorted(
        {
            f"{command}|{word}".lower() if command in _CONTAINERS else command.lower()
            for command, word in _CALLS.findall(text)
        }
    )
