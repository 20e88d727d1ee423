"""How wide text is on a terminal, and how it is cut and wrapped to fit one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category, east_asian_width

from rich.box import Box

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

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


# A frame has a line and a space on both sides of every column.
_FRAME_PER_COLUMN = 3
# A text that may be wrapped is readable from here on; what is cut still tells something.
_TEXT_FLOOR = 20
_TEXT_LEAST = 8
_TITLE_FLOOR = 16
_RECORD_GAP = 2


class TableColumn(NamedTuple):
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


class TableLayout(NamedTuple):
    """The columns to show, how wide each is, and the titles of those that are left out.

    No widths: an id or a number would have to be broken, so each row becomes a record.
    """

    columns: list[TableColumn]
    widths: list[int] | None
    left_out: list[str]


def fit(columns: Sequence[TableColumn], optional: Sequence[str], width: int) -> TableLayout:
    """Leave out as few of the optional columns as it takes, the first of them first."""
    titles = {column.title for column in columns}
    candidates = [title for title in optional if title in titles]
    kept = list(columns)
    for count in range(len(candidates) + 1):
        kept = [column for column in columns if column.title not in candidates[:count]]
        widths = _share(kept, [column.floor for column in kept], width)
        if widths is not None:
            return TableLayout(kept, widths, candidates[:count])
    widths = _share(kept, [column.least for column in kept], width)
    if widths is None:
        return TableLayout(list(columns), None, [])
    return TableLayout(kept, widths, candidates)


def records(columns: Sequence[TableColumn], width: int) -> list[str]:
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


def _record_lines(title: str, column: TableColumn, row: int, head: int, width: int) -> list[str]:
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


def _share(columns: Sequence[TableColumn], floors: Sequence[int], width: int) -> list[int] | None:
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


FRAME = Box("┌─┬┐\n│ ┆│\n╞═╪╡\n│ ┆│\n├╌┼┤\n├╌┼┤\n│ ┆│\n└─┴┘\n")


class Shape(NamedTuple):
    """How a table is drawn: what of it may be wrapped, and what left out, the first first."""

    has_header: bool = True
    text: Sequence[str] = ()
    optional: Sequence[str] = ()


PLAIN_SHAPE = Shape()


def make_table(
    names: Sequence[str], cells: Sequence[Sequence[str]], width: int, shape: Shape = PLAIN_SHAPE
) -> tuple[Table | Text, list[str]]:
    """A table to be printed or redrawn, and the columns that found no room in it.

    Where an id would have to be broken it is a list of records, with lines as wide as they are.
    """
    by_column = zip(*cells, strict=True)
    columns = [
        TableColumn(name if shape.has_header else "", cell, name in shape.text)
        for name, cell in zip(names, by_column, strict=True)
    ]
    layout = fit(columns, shape.optional, width)
    if layout.widths is None:
        return _records(layout.columns, width), layout.left_out
    return _table(layout, layout.widths, has_header=shape.has_header), layout.left_out


def print_table(names: Sequence[str], cells: Sequence[Sequence[str]], shape: Shape) -> list[str]:
    """Draw it as wide as it needs to be, and never wider than the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table, left_out = make_table(names, cells, console.width, shape)
    # Of its own accord it would break a line that is wider than the terminal.
    console.print(table, soft_wrap=not isinstance(table, Table))
    return left_out


def _records(columns: Sequence[TableColumn], width: int) -> Text:
    from rich.text import Text

    return Text("\n".join(records(columns, width)), no_wrap=True, overflow="ignore")


def _table(layout: TableLayout, widths: Sequence[int], *, has_header: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    # Who wants no colours wants no other ornaments either.
    style = "" if os.environ.get("NO_COLOR") else "bold"
    table = Table(box=FRAME, show_header=has_header, header_style=style, safe_box=False)
    for column, width in zip(layout.columns, widths, strict=True):
        title = Text(column.title, overflow="ellipsis")
        table.add_column(title, width=width, overflow="ellipsis")
    for row in zip(*(column.cells for column in layout.columns), strict=True):
        # Text, not str: square brackets in data are data, not colours.
        table.add_row(*map(Text, row))
    return table
