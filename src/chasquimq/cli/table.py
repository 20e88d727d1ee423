"""Tables on a terminal: a solid frame, dashed columns, a double line under the header."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.box import Box

from chasquimq.cli.layout import Column, Layout, fit, records

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

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
        Column(name if shape.has_header else "", cell, name in shape.text)
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


def _records(columns: Sequence[Column], width: int) -> Text:
    from rich.text import Text

    return Text("\n".join(records(columns, width)), no_wrap=True, overflow="ignore")


def _table(layout: Layout, widths: Sequence[int], *, has_header: bool) -> Table:
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
