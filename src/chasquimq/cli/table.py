"""Tables on a terminal: a solid frame, dashed columns, a double line under the header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import Box

if TYPE_CHECKING:
    from rich.table import Table

FRAME = Box("┌─┬┐\n│ ┆│\n╞═╪╡\n│ ┆│\n├╌┼┤\n├╌┼┤\n│ ┆│\n└─┴┘\n")


def make_table(names: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """A table to be printed or redrawn; without names it has no header."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=FRAME, show_header=bool(names), header_style="bold", safe_box=False)
    for name in names or [""] * len(cells[0]):
        # Folded, not cut: an id without its end is of no use to anyone.
        table.add_column(Text(name), overflow="fold")
    for row in cells:
        # Text, not str: square brackets in data are data, not colours.
        table.add_row(*map(Text, row))
    return table


def print_table(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Draw it as wide as it needs to be, and never wider than the terminal."""
    from rich.console import Console

    Console().print(make_table(names, cells))
