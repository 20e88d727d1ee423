"""Keeps a run: figures as JSON, tables as Markdown, charts as pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import ChartsMissing, draw_charts
from benchmarks.tables import notes, raw_rows, tables

Row = dict[str, Any]


def keep(document: Row, directory: Path) -> tuple[list[Path], str | None]:
    """Write everything there; which files, and why there are no charts if there are none."""
    directory.mkdir(parents=True, exist_ok=True)
    name = run_name(document)
    written = [directory / f"{name}.json", directory / f"{name}.md"]
    written[0].write_text(json_text(document), "utf-8")
    written[1].write_text(markdown(document), "utf-8")
    try:
        return written + draw_charts(document, directory, name), None
    except ChartsMissing as missing:
        return written, str(missing)


def json_text(document: Row) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def run_name(document: Row) -> str:
    """The same for all files of a run: when, and on what."""
    server = document["server"]
    moment = document["made_at"][:16].replace(":", "")
    return f"{moment}-{server['kind']}-{server['version']}"


def markdown(document: Row) -> str:
    """Notes, tables and the raw rates, ready for a page."""
    parts = ["\n".join(f"- {line}" for line in notes(document))]
    parts += [markdown_table(rows) for rows in tables(document)]
    raw = raw_rows(document)
    if raw:
        parts += ["Rounds:", markdown_table(raw)]
    return "\n\n".join(parts) + "\n"


def markdown_table(rows: Sequence[Row]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
