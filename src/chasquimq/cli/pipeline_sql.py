"""`chasqui pipeline sql`: ask the tables of a lake anything."""

from __future__ import annotations

import sys
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chasquimq.cli.options import json_option, limit_option
from chasquimq.cli.pipeline_needs import READING, need
from chasquimq.cli.pipeline_options import lake_option
from chasquimq.cli.render import emit_json, emit_table, talk
from chasquimq.model.json_value import json_value

if TYPE_CHECKING:
    from chasquimq.spark.answers import Answer

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
    from chasquimq.spark.answers import Answers

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
