"""Draws what a report wants drawn, with matplotlib, in widths for a desk and for a phone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from chasquimq.spark.charts_axes import finish_bars, finish_spans, finish_time, stack
from chasquimq.spark.charts_ink import GRID, INK, as_page_ink, ink_of
from chasquimq.spark.report_shape import Bars, Columns, Drawing, Lines, Spans

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches of a figure; an inch is 72 units of the drawing, so a phone of 360 shows it as it is.
WIDE_INCHES: Final = 9.6
NARROW_INCHES: Final = 4.3
_TIME_INCHES: Final = 2.6
_BAR_INCHES: Final = 0.36
_FRAME_INCHES: Final = 0.95
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "figure.constrained_layout.w_pad": 0.08,
}


def svg_of(drawing: Drawing, *, is_narrow: bool = False) -> str:
    """The drawing as SVG to stand in a page: its colours and its font are those of the page."""
    import matplotlib as mpl

    key = f"{drawing.key}-{'narrow' if is_narrow else 'wide'}"
    # The salt makes equal drawings equal bytes.
    with warnings.catch_warnings(), mpl.rc_context({**_STYLE, "svg.hashsalt": key}):
        # A letter that the measuring font lacks is drawn by the reader's.
        warnings.simplefilter("ignore")
        text = StringIO()
        figure_of(drawing, is_narrow=is_narrow).savefig(
            text, format="svg", metadata={"Date": None, "Creator": None}
        )
    return as_page_ink(text.getvalue(), key, drawing.title)


def figure_of(drawing: Drawing, *, is_narrow: bool) -> Figure:
    """The drawing before it is turned into bytes."""
    from matplotlib.figure import Figure

    width = NARROW_INCHES if is_narrow else WIDE_INCHES
    figure = Figure(figsize=(width, _height(drawing)), layout="constrained")
    axes = figure.add_subplot()
    draw: Callable[[Axes, Any, bool], None] = _DRAW[type(drawing)]
    draw(axes, drawing, is_narrow)
    return figure


def _height(drawing: Drawing) -> float:
    if isinstance(drawing, Bars | Spans):
        return _FRAME_INCHES + _BAR_INCHES * max(1, len(drawing.labels))
    return _TIME_INCHES


def _draw_columns(axes: Axes, drawing: Columns, is_narrow: bool) -> None:
    from matplotlib.dates import date2num

    days = date2num(drawing.moments)
    width = drawing.width_s / 86_400
    for series, floor in stack(drawing.series):
        axes.bar(
            days, series.values, width * 0.86, bottom=floor, align="edge",
            color=ink_of(series.tone), label=series.label,
        )  # fmt: skip
    # A single column should look like one, not like a wall.
    spare = max(0.0, 12 - len(days)) * width / 2
    axes.set_xlim(days[0] - spare - width * 0.1, days[-1] + width + spare)
    finish_time(axes, drawing.unit, is_narrow)


def _draw_lines(axes: Axes, drawing: Lines, is_narrow: bool) -> None:
    from matplotlib.dates import date2num

    days = date2num(drawing.moments)
    for series in drawing.series:
        axes.plot(
            days, series.values, drawstyle="steps-post", linewidth=1.8,
            color=ink_of(series.tone), label=series.label,
        )  # fmt: skip
    finish_time(axes, drawing.unit, is_narrow)


def _draw_bars(axes: Axes, drawing: Bars, is_narrow: bool) -> None:
    places = list(range(len(drawing.labels)))
    for series, floor in stack(drawing.series):
        axes.barh(
            places, series.values, 0.62, left=floor, color=ink_of(series.tone), label=series.label
        )
    for place, mark in zip(places, drawing.marks, strict=False):
        axes.plot([mark, mark], [place - 0.42, place + 0.42], color=INK, linewidth=2)
    finish_bars(axes, drawing.labels, drawing.unit, is_narrow)


def _draw_spans(axes: Axes, drawing: Spans, is_narrow: bool) -> None:
    floor_ms = 0.001
    p50, p90, p99 = (
        [max(floor_ms, value) for value in values]
        for values in (drawing.p50_ms, drawing.p90_ms, drawing.p99_ms)
    )
    places = list(range(len(p50)))
    axes.hlines(places, p50, p99, color=ink_of("fair"), linewidth=3, label="to 99 %")
    axes.hlines(places, p50, p90, color=ink_of("calm"), linewidth=9, label="to 90 %")
    axes.plot(p50, places, "o", color=INK, markersize=7, label="median", linestyle="none", zorder=5)
    finish_spans(axes, drawing.labels, is_narrow)


_DRAW: Final[dict[type, Callable[[Any, Any, bool], None]]] = {
    Columns: _draw_columns,
    Lines: _draw_lines,
    Bars: _draw_bars,
    Spans: _draw_spans,
}
