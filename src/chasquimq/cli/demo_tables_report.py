"""Says what the demo's tables hold, what they answer, and what to try next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from chasquimq.cli.demo_report import right_aligned
from chasquimq.cli.demo_tables import Tables
from chasquimq.cli.render import clean, emit_table
from chasquimq.model.json_value import json_value

LIGHT_STEPS = (
    ("docs/tutorial/first-queue.md", "write a queue and a worker of your own"),
    ("{chasqui} server start", "keep a server for this directory"),
    ("{chasqui} bench --quick", "measure this machine"),
)


def print_tables(tables: Tables) -> None:
    """Print it for people."""
    click.echo("\nAnd from the other end: Spark read the history into tables")
    lines = {
        "read": f"{tables.attempts:,} attempts in {tables.elapsed_s:.1f} s, Spark's start included",
        "checked": "the report says what the workers counted, name by name",
        "complete": tables.completeness,
        "report": _near(tables.page),
    }
    if tables.differences:
        lines["checked"] = "the report does NOT say what the workers counted:"
    for what, line in lines.items():
        click.echo(f"{what:8}  {clean(line)}")
    emit_table([one._asdict() for one in tables.differences])
    click.echo("\nThree questions, answered from the tables")
    for answered in tables.answers:
        click.echo(f"\n{answered.question.words}")
        emit_table(right_aligned(answered.rows) if answered.rows else [])


def print_next_steps(tables: Tables | None) -> None:
    """Print what to do now."""
    # In a checkout the command is a file of it, and not on PATH.
    chasqui = "./chasqui" if Path("chasqui").is_file() else "chasqui"
    steps = [(what.format(chasqui=chasqui), why) for what, why in LIGHT_STEPS]
    if tables is not None:
        lake = _near(tables.lake)
        steps = [
            (_near(tables.page), "open it in a browser"),
            (f'{chasqui} pipeline sql "from silver_jobs" --lake {lake}', "ask more"),
            *steps,
        ]
    width = max((len(what) for what, _ in steps if len(what) < 40), default=0)
    click.echo("\nTry next")
    for what, why in steps:
        click.echo(f"  {clean(what):{width}}  {why}")


def tables_facts(tables: Tables) -> dict[str, Any]:
    """The same for programs."""
    return {
        "lake": str(tables.lake.absolute()),
        "page": str(tables.page),
        "attempts": tables.attempts,
        "elapsed_s": round(tables.elapsed_s, 2),
        "completeness": tables.completeness,
        "is_whole": tables.is_whole,
        "differences": [one._asdict() for one in tables.differences],
        "answers": [
            {"question": one.question.words, "rows": json_value(one.rows)} for one in tables.answers
        ],
    }


def _near(path: Path) -> str:
    """The path from here, where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
