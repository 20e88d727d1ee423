"""A report as one HTML page that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from chasquimq.spark.report.charts import svg_of
from chasquimq.spark.report.format import moment_text, shown, text_of
from chasquimq.spark.report.shape import LEFT, Column, Drawing, Figure, Grid, Report, Section, Spans

QUEUES_SHOWN_MAX: Final = 8
_STYLE: Final = Path(__file__).with_name("report.css")
# Nothing may be fetched and nothing may run, whatever a job is called.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
"""
_FOOT: Final = """<footer>
<p>Times are UTC. Every section says how complete it is: a share below 100 % means that attempts ran
which are in none of these figures. Waits end with the start, by the server's clock.</p>
</footer>
</body>
</html>
"""


def page_of(report: Report) -> str:
    """The whole page; the same report is always the same bytes."""
    title = f"Report: {_queues_text(report)}"
    head = _HEAD.format(policy=_POLICY, title=escape(title), style=_STYLE.read_text("utf-8"))
    return "".join((head, _header(report), _main(report), _FOOT))


def _header(report: Report) -> str:
    links = _joined(f'<a href="#{one.key}">{escape(one.title)}</a>' for one in report.sections)
    return (
        f"<header>\n<h1>{escape(_queues_text(report))}</h1>\n"
        f'<p class="period">{escape(_period_text(report))}</p>\n<nav>{links}</nav>\n</header>\n'
    )


def _queues_text(report: Report) -> str:
    names = [shown(queue, 60) for queue in report.queues[:QUEUES_SHOWN_MAX]]
    left = len(report.queues) - len(names)
    more = [f"{left} more"] if left else []
    return ", ".join(names + more) or "no queue yet"


def _period_text(report: Report) -> str:
    if report.first_at is None or report.last_at is None:
        return "nothing has happened yet"
    return f"{moment_text(report.first_at)} to {moment_text(report.last_at)} UTC"


def _main(report: Report) -> str:
    figures = _joined(map(_figure, report.figures))
    sections = _joined(map(_section, report.sections))
    return f'<main>\n<dl class="figures">\n{figures}\n</dl>\n{sections}\n</main>\n'


def _figure(figure: Figure) -> str:
    label, text = escape(figure.label), escape(figure.text)
    return f'<div class="{figure.tone}"><dt>{label}</dt><dd>{text}</dd></div>'


def _section(section: Section) -> str:
    parts = [
        f"<h2>{escape(section.title)}</h2>",
        *(f"<p>{escape(sentence)}</p>" for sentence in section.sentences),
        _absence(section),
        _drawings(section.drawings),
        *map(_grid, section.grids),
        _completeness(section),
    ]
    return f'<section id="{section.key}">\n{_joined(filter(None, parts))}\n</section>'


def _absence(section: Section) -> str:
    return f'<p class="absence">{escape(section.absence)}</p>' if section.absence else ""


def _completeness(section: Section) -> str:
    if not section.completeness:
        return ""
    return f'<p class="completeness">Completeness: {escape(section.completeness)}.</p>'


def _drawings(drawings: Iterable[Drawing]) -> str:
    drawn = list(drawings)
    # Two short ones stand side by side, drawn for half the width.
    if len(drawn) == 2 and all(isinstance(one, Spans) for one in drawn):
        return f'<div class="pair">\n{_joined(map(_half, drawn))}\n</div>'
    return _joined(map(_full, drawn))


def _half(drawing: Drawing) -> str:
    return _captioned(drawing, svg_of(drawing, is_narrow=True))


def _full(drawing: Drawing) -> str:
    wide, narrow = svg_of(drawing), svg_of(drawing, is_narrow=True)
    both = f'<div class="wide">{wide}</div>\n<div class="narrow">{narrow}</div>'
    return _captioned(drawing, both)


def _captioned(drawing: Drawing, svg: str) -> str:
    return f"<figure>\n<figcaption>{escape(drawing.title)}</figcaption>\n{svg}\n</figure>"


def _grid(grid: Grid) -> str:
    title = f"<h3>{escape(grid.title)}</h3>\n" if grid.title else ""
    note = f'\n<p class="note">{escape(grid.note)}</p>' if grid.note else ""
    names = "".join(f"<th{_class(one)}>{escape(one.label)}</th>" for one in grid.columns)
    rows = _joined(_row(grid, row) for row in grid.rows)
    return f"{title}<table>\n<thead><tr>{names}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>{note}"


def _row(grid: Grid, row: Mapping[str, Any]) -> str:
    cells = (
        f'<td{_class(one)} data-label="{escape(one.label)}">'
        f"{escape(text_of(row.get(one.name), one.kind))}</td>"
        for one in grid.columns
    )
    return f"<tr>{''.join(cells)}</tr>"


def _class(column: Column) -> str:
    kind = "text" if column.kind == "name" else column.kind
    kind = kind if column.kind in LEFT else "number"
    return f' class="{kind}"'


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(parts)
