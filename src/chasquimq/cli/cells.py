"""How wide text is on a terminal, and how it is cut and wrapped to fit one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from unicodedata import category, east_asian_width

CUT_MARK = "…"
INDENT = "    "
# What no terminal is narrower than, whatever it says.
_COLUMNS_MIN = 20
_COLUMNS_UNKNOWN = 80


def terminal_columns() -> int:
    """How many columns the terminal of this process has."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return max(_COLUMNS_MIN, int(given))
    # Answers, talk, keys: whichever of them is a terminal knows.
    for descriptor in (1, 2, 0):
        with suppress(OSError):
            return max(_COLUMNS_MIN, os.get_terminal_size(descriptor).columns)
    return _COLUMNS_UNKNOWN


def cell_width(text: str) -> int:
    """How many columns a text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


def padded(text: str, columns: int) -> str:
    """The text with spaces behind it, up to that many columns."""
    return text + " " * (columns - cell_width(text))


def cut(text: str, columns: int) -> str:
    """The text as it is where it fits, and else its beginning and an ellipsis."""
    if cell_width(text) <= columns:
        return text
    kept, taken = "", 0
    for character in text:
        taken += _width(character)
        if taken > columns - 1:
            break
        kept += character
    return kept + CUT_MARK


def wrapped(
    text: str, columns: int, indent: str = INDENT, *, is_whole: Callable[[str], bool] = bool
) -> list[str]:
    """Lines that are broken at spaces; a word that is wider than a line has one of its own.

    Words that need not be whole are cut there.
    """
    lines: list[str] = []
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line.strip() else line + word
        if cell_width(joined) > columns and line.strip():
            lines.append(line)
            joined = indent + word
        line = joined if is_whole(word) else cut(joined, columns)
    return [*lines, line]


def bounded_lines(text: str, columns: int, lines_max: int) -> list[str]:
    """The same in so many lines at most; what is cut off leaves a mark."""
    lines = wrapped(text, columns)
    if len(lines) <= lines_max:
        return lines
    return [*lines[: lines_max - 1], cut(f"{lines[lines_max - 1]} {lines[lines_max]}", columns)]


def _width(character: str) -> int:
    if east_asian_width(character) in "WF":
        return 2
    return 0 if category(character) in ("Mn", "Me", "Cf") else 1
