"""What makes a screen readable: nothing wider than it, frames that meet, no word cut in silence."""

from __future__ import annotations

import re

from rich.cells import cell_len

from support.command import ESCAPES

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FRAME = str.maketrans(dict.fromkeys("┌┬┐└┴┘╞╪╡═─│┆", " "))
_CHANGING = re.compile(r"\d")
# A number that changes between two looks may change its unit, too.
_UNITS = {"ms", "s", "min", "h", "d"}


def lines_of(shown: str) -> list[str]:
    """The lines that were written, without colours and movements of the cursor."""
    text = ESCAPES.sub("", shown).replace("\r", "\n")
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def assert_fits(lines: list[str], columns: int) -> None:
    """A word that may not be broken, as an id, stands alone where it is wider."""
    too_wide = [line for line in lines if cell_len(line) > columns and len(line.split()) > 1]
    assert too_wide == []


def assert_frames_meet(lines: list[str]) -> None:
    """Every row of a table has its separators where the frame above has them."""
    corners: list[int] | None = None
    rows = 0
    for line in lines:
        if line.startswith("┌"):
            corners = _places(line, "┌┬┐")
        elif corners is not None:
            assert _places(line, "│┆╞╪╡└┴┘") == corners, line
            rows += 1
        if line.startswith("└"):
            corners = None
    assert corners is None, "a frame must be closed"
    assert rows


def assert_words_are_whole(lines: list[str], told: str) -> None:
    """Each word stands in the plain answer, or is the beginning of one and says so."""
    known = {word for word in told.split() if not _CHANGING.search(word)} | _UNITS
    # Where half of a wide character would fit, there is a space before the mark.
    for word in " ".join(lines).translate(_FRAME).replace(" …", "…").split():
        if word in known or _CHANGING.search(word):
            continue
        stem, mark, rest = word.partition("…")
        assert (mark, rest) == ("…", ""), f"{word!r} is cut without a word of it"
        assert any(whole.startswith(stem) for whole in known), f"{word!r} is of no word"


def _places(line: str, marks: str) -> list[int]:
    return [cell_len(line[:at]) for at, character in enumerate(line) if character in marks]
