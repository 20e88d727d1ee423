"""A report on a terminal or in a pipe: the sentences and the tables of its page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from chasquimq.cli.render import clean, emit_table

if TYPE_CHECKING:
    from chasquimq.spark.report_shape import Column, Grid, Report, Section

# Columns that a narrow terminal may do without, the first first.
OPTIONAL = (
    "fingerprint", "first seen", "last seen", "outlook", "channel", "day", "oldest waits",
    "wait p90", "run p90",
)  # fmt: skip
WRAPPED = ("error", "outlook", "meaning", "name")


def print_report(report: Report) -> None:
    """Print it for people."""
    figures = "   ".join(f"{figure.label} {figure.text}" for figure in report.figures)
    click.echo(f"{clean(', '.join(report.queues)) or 'no queue yet'}\n{figures}")
    for section in report.sections:
        _print_section(section)


def _print_section(section: Section) -> None:
    click.echo(f"\n{section.title.upper()}")
    for sentence in section.sentences or [section.absence]:
        click.echo(clean(sentence))
    for grid in section.grids:
        _print_grid(grid)
    if section.completeness:
        click.echo(f"completeness: {clean(section.completeness)}")


def _print_grid(grid: Grid) -> None:
    if grid.title:
        click.echo(f"\n{grid.title}")
    cells = [_texts(column, grid) for column in grid.columns]
    labels = [column[0] for column in cells]
    rows = [dict(zip(labels, row, strict=True)) for row in zip(*cells, strict=True)][1:]
    emit_table(rows, text=WRAPPED, optional=OPTIONAL)
    if grid.note:
        click.echo(clean(grid.note))


def _texts(column: Column, grid: Grid) -> list[str]:
    """The label and the cells of a column; numbers stand at the right."""
    from chasquimq.spark.report_format import text_of
    from chasquimq.spark.report_shape import LEFT

    texts = [text_of(row.get(column.name), column.kind) for row in grid.rows]
    if column.kind in LEFT:
        return [column.label, *texts]
    # A drawn table may have to wrap its labels, and cells as wide as these would be wrapped, too.
    label = "" if sys.stdout.isatty() else column.label
    width = max(map(len, [label, *texts]))
    return [column.label.rjust(width), *(text.rjust(width) for text in texts)]
