"""Bar charts of a document; needs matplotlib, which nothing else here does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.latency import RANKS
from benchmarks.rounds import LIMIT, OURS
from chasquimq.errors import ChasquiError

Row = dict[str, Any]

MATPLOTLIB_MISSING = (
    "charts need matplotlib, which is not installed; .venv/bin/python -m pip install matplotlib"
)
_COLUMNS = 3
_INCHES_WIDE, _INCHES_PER_BAR, _INCHES_FRAME = 5.2, 0.26, 1.0
_COLOURS = {OURS: "#c8553d", LIMIT: "#9aa5b1"}
_OTHER_COLOUR = "#588b8b"
_DPI = 110


def draw_charts(document: Row, directory: Path, name: str) -> list[Path]:
    """Write a picture of each part that has figures.

    Raises:
        ChartsMissing: matplotlib is not there.
    """
    parts = {
        "scenarios": _scenario_panels(document),
        "latency": _latency_panels(document),
        "growth": _growth_panels(document),
    }
    title = _title(document)
    return [
        _draw(panels, f"{title}: {part}", directory / f"{name}-{part}.png")
        for part, panels in parts.items()
        if panels
    ]


class ChartsMissing(ChasquiError):
    """Install what the message names; figures and tables are there without it."""


class Panel:
    """One frame of horizontal bars: labels, values, and how far rounds were apart."""

    def __init__(self, title: str, unit: str) -> None:
        self.title = title
        self.unit = unit
        self.labels: list[str] = []
        self.values: list[float] = []
        self.errors: tuple[list[float], list[float]] = ([], [])
        self.colours: list[str] = []

    def bar(self, label: str, side: str, found: dict[str, float]) -> None:
        self.labels.append(label)
        self.values.append(found["median"])
        self.errors[0].append(found["median"] - found["min"])
        self.errors[1].append(found["max"] - found["median"])
        self.colours.append(_COLOURS.get(side, _OTHER_COLOUR))


def _scenario_panels(document: Row) -> list[Panel]:
    panels: list[Panel] = []
    for scenario in document["scenarios"]:
        panel = Panel(scenario["name"], "jobs/s")
        for side in scenario["sides"]:
            panel.bar(side["side"], side["side"], side["jobs_per_s"])
        panels.append(panel)
    return panels


def _latency_panels(document: Row) -> list[Panel]:
    rows = [row for row in document["latency"] if not row["is_capacity"]]
    panels: list[Panel] = []
    for rank in RANKS if rows else ():
        panel = Panel(f"add to start, {rank}", "ms")
        for row in rows:
            label = f"{row['side']} at {row['arrived_per_s']:,.0f}/s"
            panel.bar(f"{label} ({row['share']:.0%})", row["side"], row["wait_ms"][rank])
        panels.append(panel)
    return panels


def _growth_panels(document: Row) -> list[Panel]:
    panels: dict[str, Panel] = {}
    for row in document["growth"]:
        dimension = row["dimension"]
        panel = panels.setdefault(dimension, Panel(dimension, "jobs/s"))
        panel.bar(f"{row['side']} {row['size']:,}", row["side"], row["jobs_per_s"])
    return list(panels.values())


def _draw(panels: Sequence[Panel], title: str, path: Path) -> Path:
    figures = _figure_module()
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    bars = max(len(panel.labels) for panel in panels)
    size = (_INCHES_WIDE * columns, (_INCHES_FRAME + _INCHES_PER_BAR * bars) * rows + 0.5)
    figure = figures.Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    for at, panel in enumerate(panels):
        _fill(figure.add_subplot(rows, columns, at + 1), panel)
    figure.savefig(path, dpi=_DPI)
    return path


def _fill(axes: Any, panel: Panel) -> None:
    bars = axes.barh(panel.labels, panel.values, xerr=panel.errors, color=panel.colours, capsize=2)
    axes.bar_label(bars, labels=[_value_text(one) for one in panel.values], padding=3, fontsize=7)
    # The first one is ours and stands on top; every axis begins at nothing.
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(_figure_module("ticker").MaxNLocator(4))
    axes.xaxis.set_major_formatter(_tick_text)


def _value_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _tick_text(value: float, _position: int) -> str:
    return f"{value:,g}"


def _figure_module(name: str = "figure") -> Any:
    from importlib import import_module

    try:
        return import_module(f"matplotlib.{name}")
    except ImportError:
        raise ChartsMissing(MATPLOTLIB_MISSING) from None


def _title(document: Row) -> str:
    server, machine = document["server"], document["machine"]
    return f"{server['kind']} {server['version']}, {machine['cores']} cores, {document['made_at'][:10]}"
