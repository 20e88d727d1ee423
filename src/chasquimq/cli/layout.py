"""Shares the width of a terminal among the columns of a table, so that words stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chasquimq.cli.cells import cell_width, padded, wrapped

# A frame has a line and a space on both sides of every column.
_FRAME_PER_COLUMN = 3
# A text that may be wrapped is readable from here on; what is cut still tells something.
_TEXT_FLOOR = 20
_TEXT_LEAST = 8
_TITLE_FLOOR = 16
_RECORD_GAP = 2


class Column(NamedTuple):
    """What a column holds; `is_text` may be wrapped at spaces, ids and numbers may not."""

    title: str
    cells: Sequence[str]
    is_text: bool

    @property
    def widest_cell(self) -> int:
        return max(map(cell_width, self.cells))

    @property
    def natural(self) -> int:
        return max(cell_width(self.title), self.widest_cell)

    @property
    def floor(self) -> int:
        """What it needs to show every word, or to be read well where words are long."""
        if not self.is_text:
            return max(self._title_floor, self.widest_cell)
        return max(self._title_floor, min(_longest_word(self.cells), _TEXT_FLOOR))

    @property
    def least(self) -> int:
        """What it needs where something must be cut; ids still may not."""
        return min(self.floor, _TEXT_LEAST) if self.is_text else self.floor

    @property
    def _title_floor(self) -> int:
        return min(_longest_word([self.title]), _TITLE_FLOOR)


class Layout(NamedTuple):
    """The columns to show, how wide each is, and the titles of those that are left out.

    No widths: an id or a number would have to be broken, so each row becomes a record.
    """

    columns: list[Column]
    widths: list[int] | None
    left_out: list[str]


def fit(columns: Sequence[Column], optional: Sequence[str], width: int) -> Layout:
    """Leave out as few of the optional columns as it takes, the first of them first."""
    titles = {column.title for column in columns}
    candidates = [title for title in optional if title in titles]
    kept = list(columns)
    for count in range(len(candidates) + 1):
        kept = [column for column in columns if column.title not in candidates[:count]]
        widths = _share(kept, [column.floor for column in kept], width)
        if widths is not None:
            return Layout(kept, widths, candidates[:count])
    widths = _share(kept, [column.least for column in kept], width)
    if widths is None:
        return Layout(list(columns), None, [])
    return Layout(kept, widths, candidates)


def records(columns: Sequence[Column], width: int) -> list[str]:
    """The rows one below the other, a line for each cell; what is no text is never broken."""
    lines: list[str] = []
    if not any(column.title for column in columns):
        # Without a header the first cell of a row says what the others are.
        titles, *others = columns
        head = max(titles.widest_cell, 1)
        for row, title in enumerate(titles.cells):
            for column in others:
                lines += _record_lines(title, column, row, head, width)
        return lines
    head = max(cell_width(column.title) for column in columns)
    for row in range(len(columns[0].cells)):
        lines += [""] if lines else []
        for column in columns:
            lines += _record_lines(column.title, column, row, head, width)
    return lines


def _record_lines(title: str, column: Column, row: int, head: int, width: int) -> list[str]:
    # Where titles leave no room beside them, cells stand below them.
    is_beside = width - head - _RECORD_GAP >= _TEXT_FLOOR
    indent = head + _RECORD_GAP if is_beside else _RECORD_GAP
    cell = column.cells[row]
    parts = wrapped(cell, width - indent, "", is_whole=_never) if column.is_text else [cell]
    below = [" " * indent + part for part in parts]
    if not is_beside:
        return [title, *below]
    return [padded(title, indent) + parts[0], *below[1:]]


def _never(_word: str) -> bool:
    return False


def _share(columns: Sequence[Column], floors: Sequence[int], width: int) -> list[int] | None:
    left = width - 1 - _FRAME_PER_COLUMN * len(columns) - sum(floors)
    if left < 0:
        return None
    # What is in a table matters more than what stands above it.
    widths = _grown(floors, [column.widest_cell for column in columns], left)
    left -= sum(widths) - sum(floors)
    return _grown(widths, [column.natural for column in columns], left)


def _grown(widths: Sequence[int], wanted: Sequence[int], left: int) -> list[int]:
    """Each a little wider, the narrowest first, until all have what they want or none is left."""
    grown = list(widths)
    for _ in range(left):
        growing = [at for at, most in enumerate(wanted) if grown[at] < most]
        if not growing:
            break
        grown[min(growing, key=grown.__getitem__)] += 1
    return grown


def _longest_word(texts: Sequence[str]) -> int:
    return max((cell_width(word) for text in texts for word in text.split()), default=1)
