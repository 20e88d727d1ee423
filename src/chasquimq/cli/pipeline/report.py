"""Answers from the tables: a report as a page and as text, or one SELECT."""

from __future__ import annotations

import sys
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.context import json_option, limit_option
from chasquimq.cli.files import whole_file
from chasquimq.cli.output.render import clean, emit_json, emit_table, talk
from chasquimq.cli.output.terminal import working
from chasquimq.cli.pipeline.options import DRAWING, READING, lake_option, need, queues_option
from chasquimq.cli.values import DURATION
from chasquimq.errors import PreconditionFailed
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.spark.query.queries import Answer, Answers
    from chasquimq.spark.report.shape import Grid, Report, Section

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
    from chasquimq.spark.report.format import text_of
    from chasquimq.spark.report.shape import LEFT

    rows = [
        {one.label: text_of(row.get(one.name), one.kind) for one in grid.columns}
        for row in grid.rows
    ]
    numbers = [one.label for one in grid.columns if one.kind not in LEFT]
    emit_table(rows, text=WRAPPED, optional=OPTIONAL, right=numbers)
    if grid.note:
        click.echo(clean(grid.note))


PAGE_NAME = "report.html"
STDOUT = Path("-")
QUEUES_LISTED_MAX = 10


@click.command()
@queues_option
@click.option(
    "--last", "last_ms", type=DURATION, help="Only the end: 1h, 1d.  [default: all there is]"
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help=f"The page to write; - is stdout.  [default: {PAGE_NAME} beside the lake]",
)
@lake_option
@json_option
def report(
    queues: tuple[str, ...],
    last_ms: int | None,
    output: Path | None,
    lake: Path,
    as_json: bool,
) -> None:
    """Write one HTML page about the lake, and print the same.

    The page needs no network and no script. --last counts from the newest fact in the lake, so the
    same lake always makes the same page.
    """
    need(DRAWING)
    if output == STDOUT and as_json:
        raise click.UsageError("--output - and --json both want stdout; name a file for the page")
    last = None if last_ms is None else timedelta(milliseconds=last_ms)
    with working("asking the tables"):
        made = ask_report(lake, queues, last)
    if output == STDOUT:
        click.echo(_page(made), nl=False)
        return
    # Drawing takes longer than asking, so what can be read comes first.
    if not as_json:
        print_report(made)
    path = write_page(made, output or lake.resolve().parent / PAGE_NAME)
    if as_json:
        emit_json({"page": str(path), **report_facts(made)})
    else:
        click.echo(f"\npage: {clean(str(path))}")


def ask_report(lake: Path, queues: tuple[str, ...] = (), last: timedelta | None = None) -> Report:
    """All that a lake has to say."""
    from chasquimq.spark.query.queries import Answers
    from chasquimq.spark.report.report import make_report

    with Answers(lake) as answers:
        _refuse_unknown(answers, queues)
        made = make_report(answers, queues, last)
    if not made.queues:
        hint = "let a worker run a job, then fill it with `chasqui pipeline once`"
        raise PreconditionFailed("lake", str(lake), "a lake with rows", hint=hint)
    return made


def write_page(made: Report, path: Path) -> Path:
    """Draw the page and put it where it belongs, in one step."""
    _put(path.absolute(), _page(made))
    return path.absolute()


def report_facts(made: Report) -> dict[str, Any]:
    """The report for programs."""
    return {
        "queues": list(made.queues),
        "first_at": json_value(made.first_at),
        "last_at": json_value(made.last_at),
        "figures": {figure.name: figure.value for figure in made.figures},
        "sections": {
            one.key: {
                "sentences": list(one.sentences) or [one.absence],
                "completeness": one.completeness or None,
                "tables": [_grid_facts(grid) for grid in one.grids],
            }
            for one in made.sections
        },
    }


def _page(made: Report) -> str:
    from chasquimq.spark.report.page import page_of

    with working("drawing the page"):
        return page_of(made)


def _grid_facts(grid: Grid) -> dict[str, Any]:
    names = [column.name for column in grid.columns]
    rows = [{name: json_value(row.get(name)) for name in names} for row in grid.rows]
    return {"title": grid.title or None, "rows": rows, "note": grid.note or None}


def _refuse_unknown(answers: Answers, queues: tuple[str, ...]) -> None:
    from chasquimq.spark.query.scope import known_queues

    known = known_queues(answers) if queues else []
    for queue in queues:
        if queue not in known:
            raise PreconditionFailed("queue", queue, f"a queue of this lake ({_listed(known)})")


def _listed(known: list[str]) -> str:
    left = len(known) - QUEUES_LISTED_MAX
    more = [f"and {left:,} more, see `chasqui pipeline report`"] if left > 0 else []
    return ", ".join([*known[:QUEUES_LISTED_MAX], *more]) or "none yet"


def _put(path: Path, page: str) -> None:
    try:
        with whole_file(path, is_private=False) as file:
            file.write(page)
    except OSError as refused:
        raise PreconditionFailed(
            "output", str(path), "a file that can be written", hint=str(refused.strerror)
        ) from refused


ROWS_DEFAULT = 1_000


@click.command()
@click.argument("question", metavar="SELECT|-")
@limit_option(ROWS_DEFAULT, "Rows to show, at most.")
@lake_option
@json_option
def sql(question: str, limit: int, lake: Path, as_json: bool) -> None:
    """Answer one SELECT from the tables; - reads it from stdin.

    Rows of one key are merged already, so sums are right while the pipeline runs. Nothing is
    written, and no Java is needed.
    """
    need(READING)
    from chasquimq.spark.query.queries import Answers

    text = sys.stdin.read() if question == "-" else question
    with Answers(lake) as answers:
        answer = answers.sql(text, rows_max=limit)
    if as_json:
        emit_json([json_value(row) for row in answer.dicts()])
    elif answer.rows:
        emit_table(_rows(answer))
    else:
        talk("no rows")
    if answer.is_cut:
        talk(f"the first {limit:,} rows; --limit shows more")


def _rows(answer: Answer) -> list[dict[str, Any]]:
    return [{name: _cell(value) for name, value in row.items()} for row in answer.dicts()]


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, datetime | date):
        return str(value).removesuffix("+00:00")
    return f"{value:g}" if isinstance(value, float) else value
