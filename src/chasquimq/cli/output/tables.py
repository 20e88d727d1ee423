"""Fits tables and text to a terminal with rich: words wrap, ids and numbers stay whole.

`rich` is imported where something is drawn, because most commands draw nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

CUT_MARK = "…"
INDENT = "    "
# What no terminal is narrower than, whatever it says.
_COLUMNS_MIN = 20
_COLUMNS_UNKNOWN = 80
# Terminals on which nothing can be redrawn.
_DUMB = ("dumb", "unknown", "")
# A text that may be wrapped is readable from here on; what is cut still says something.
_TEXT_FLOOR = 20
_TEXT_LEAST = 8
_TITLE_FLOOR = 16
_RECORD_GAP = 2
# A double line below the titles, a dashed one between columns.
_FRAME = "┌─┬┐\n│ ┆│\n╞═╪╡\n│ ┆│\n├╌┼┤\n├╌┼┤\n│ ┆│\n└─┴┘\n"
# A frame has a line and a space on both sides of every column.
_FRAME_PER_COLUMN = 3


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


def can_redraw(stream: TextIO) -> bool:
    """Whether what was written to it can be written over."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in _DUMB


def padded(text: str, columns: int, *, is_right: bool = False) -> str:
    """The text with spaces behind or before it, up to that many columns."""
    space = " " * (columns - cell_len(text))
    return space + text if is_right else text + space


def cut(text: str, columns: int) -> str:
    """The text as it is where it fits, and else its beginning and an ellipsis."""
    return text if cell_len(text) <= columns else set_cell_size(text, columns - 1) + CUT_MARK


def wrapped(text: str, columns: int, indent: str = INDENT) -> list[str]:
    """Lines that are broken at spaces; a word that is wider than a line has one of its own.

    All but the first begin with the indent.
    """
    if cell_len(text) <= columns:
        return [text]
    first, *more = _wrapped(text, columns - cell_len(indent), "ignore")
    return [first, *(indent + line for line in more)]


def bounded_lines(text: str, columns: int, lines_max: int) -> list[str]:
    """The same in so many lines at most; what is cut off leaves a mark."""
    lines = wrapped(text, columns)
    if len(lines) <= lines_max:
        return lines
    return [*lines[: lines_max - 1], cut(f"{lines[lines_max - 1]} {lines[lines_max]}", columns)]


def _wrapped(text: str, columns: int, overflow: Literal["ellipsis", "ignore"]) -> list[str]:
    from rich.console import Console
    from rich.text import Text

    lines = Text(" ".join(text.split()), overflow=overflow).wrap(Console(), columns)
    return [line.plain.rstrip() for line in lines] or [""]


class Shape(NamedTuple):
    """How a table is drawn, by the names of its columns.

    Those of `text` may be wrapped, those of `right` stand at the right, and of the `optional` ones
    as few are left out as it takes, the first of them first.
    """

    has_header: bool = True
    text: Sequence[str] = ()
    optional: Sequence[str] = ()
    right: Sequence[str] = ()


PLAIN_SHAPE = Shape()


class TableColumn(NamedTuple):
    """A column to draw; `is_text` may be wrapped at spaces, ids and numbers may not."""

    title: str
    cells: Sequence[str]
    is_text: bool
    is_right: bool

    @property
    def natural(self) -> int:
        """What it needs to be drawn in one line each, with its title."""
        return max(cell_len(self.title), self.widest_cell)

    @property
    def widest_cell(self) -> int:
        return max(map(cell_len, self.cells))

    def floor(self, text_most: int) -> int:
        """What it needs to show every word, or that much where the words of a text are long."""
        title = min(_longest_word([self.title]), _TITLE_FLOOR)
        cells = min(_longest_word(self.cells), text_most) if self.is_text else self.widest_cell
        return max(title, cells)


def print_table(names: Sequence[str], cells: Sequence[Sequence[str]], shape: Shape) -> list[str]:
    """Draw it as wide as it needs to be, and never wider than the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=terminal_columns())
    table, left_out = make_table(names, cells, console.width, shape)
    # Of its own accord it would break a line that is wider than the terminal.
    console.print(table, soft_wrap=not isinstance(table, Table))
    return left_out


def plain_lines(
    names: Sequence[str], cells: Sequence[Sequence[str]], shape: Shape
) -> Iterator[str]:
    """The whole rows as lines of a pipe, each column as wide as it needs to be."""
    lines = [names, *cells] if shape.has_header else cells
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    at_right = [name in shape.right for name in names]
    for line in lines:
        row = map(_padded_cell, line, widths, at_right)
        yield (" " * _RECORD_GAP).join(row).rstrip()


def _padded_cell(cell: str, columns: int, is_right: bool) -> str:
    return padded(cell, columns, is_right=is_right)


def make_table(
    names: Sequence[str], cells: Sequence[Sequence[str]], width: int, shape: Shape = PLAIN_SHAPE
) -> tuple[Table | Text, list[str]]:
    """A table to be printed or redrawn, and the columns that found no room in it.

    Where an id would have to be broken it is a list of records, with lines as wide as they are.
    """
    columns = [
        TableColumn(name if shape.has_header else "", cell, name in shape.text, name in shape.right)
        for name, cell in zip(names, zip(*cells, strict=True), strict=True)
    ]
    for text_most, left_out in _attempts([name for name in shape.optional if name in names]):
        kept = [one for one in columns if one.title not in left_out]
        if _frame_columns(kept) + sum(one.floor(text_most) for one in kept) <= width:
            return _table(kept, width, text_most, has_header=shape.has_header), left_out
    return _records(columns, width), []


def _attempts(optional: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """What to ask of the texts, and what to leave out: first nothing, at last words are cut."""
    for count in range(len(optional) + 1):
        yield _TEXT_FLOOR, list(optional[:count])
    yield _TEXT_LEAST, list(optional)


def _frame_columns(columns: Sequence[TableColumn]) -> int:
    return 1 + _FRAME_PER_COLUMN * len(columns)


def _table(
    columns: Sequence[TableColumn], width: int, text_most: int, *, has_header: bool
) -> Table:
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    # Who wants no colours wants no other ornaments either.
    style = "" if os.environ.get("NO_COLOR") else "bold"
    box = Box(_FRAME)
    table = Table(box=box, show_header=has_header, header_style=style, safe_box=False)
    is_roomy = _frame_columns(columns) + sum(one.natural for one in columns) <= width
    for one in columns:
        # A column with a width keeps it; rich shares what is left among the others.
        kept = None if one.is_text or is_roomy else one.floor(text_most)
        title = Text(one.title, overflow="ellipsis")
        justify = "right" if one.is_right else "left"
        table.add_column(title, width=kept, justify=justify, overflow="ellipsis")
    for row in zip(*(one.cells for one in columns), strict=True):
        # Text, not str: square brackets in data are data, not colours.
        table.add_row(*map(Text, row))
    return table


def _records(columns: Sequence[TableColumn], width: int) -> Text:
    """The rows one below the other, a line for each cell; what is no text is never broken."""
    from rich.text import Text

    titles = [one.title for one in columns]
    blocks: list[list[str]] = []
    for row in range(len(columns[0].cells)):
        if any(titles):
            head = max(map(cell_len, titles))
            parts = [_record_lines(one.title, one, row, head, width) for one in columns]
        else:
            # Without a header the first cell of a row says what the others are.
            named, *others = columns
            head = max(named.widest_cell, 1)
            parts = [_record_lines(named.cells[row], one, row, head, width) for one in others]
        blocks.append([line for part in parts for line in part])
    between = "\n\n" if any(titles) else "\n"
    return Text(between.join(map("\n".join, blocks)), no_wrap=True, overflow="ignore")


def _record_lines(title: str, column: TableColumn, row: int, head: int, width: int) -> list[str]:
    # Where titles leave no room beside them, cells stand below them.
    is_beside = width - head - _RECORD_GAP >= _TEXT_FLOOR
    indent = head + _RECORD_GAP if is_beside else _RECORD_GAP
    cell = column.cells[row]
    parts = _wrapped(cell, width - indent, "ellipsis") if column.is_text else [cell]
    below = [" " * indent + part for part in parts]
    if not is_beside:
        return [title, *below]
    return [padded(title, indent) + parts[0], *below[1:]]


def _longest_word(texts: Sequence[str]) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=1)
