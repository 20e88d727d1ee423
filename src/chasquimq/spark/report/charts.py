"""Colours, fonts and ids of drawings: stand-ins while they are made, the page's own afterwards."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from chasquimq.spark.report.format import ms_text, shown
from chasquimq.spark.report.shape import Bars, Columns, Drawing, Lines, Series, Spans, Tone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that nothing else has; each becomes a variable of the page, so that dark is dark.
INK: Final = "#010203"
GRID: Final = "#010204"
_TONES: Final[dict[Tone, str]] = {
    "good": "#010205",
    "fair": "#010206",
    "bad": "#010207",
    "calm": "#010208",
    "plain": "#010209",
}
_VARIABLES: Final = {
    INK: "var(--ink-soft)",
    GRID: "var(--line)",
    **{colour: f"var(--{tone})" for tone, colour in _TONES.items()},
}
_COLOUR: Final = re.compile("|".join(_VARIABLES))
_ID: Final = re.compile(r'\bid="([^"]+)"')
_REFERENCE: Final = re.compile(r'(xlink:href="#|url\(#)([^")]+)')
_FONT: Final = re.compile(r"font: (?P<size>[\d.]+px) [^;\"]+")
_METADATA: Final = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_TAG: Final = re.compile(r"<[^>]*>")
_SIZE: Final = re.compile(r' (?:width|height)="[\d.]+pt"')


def ink_of(tone: Tone) -> str:
    """The stand-in for a tone."""
    return _TONES[tone]


def as_page_ink(svg: str, key: str, title: str) -> str:
    """The drawing as a part of a page: own ids, the page's colours, a name for who listens."""
    _, _, body = svg.partition("<svg")
    drawn = _METADATA.sub("", "<svg" + body)
    # Only in tags: what stands between them is the text of names.
    drawn = _TAG.sub(lambda tag: _inked(tag[0], key), drawn)
    head, _, rest = drawn.partition(">")
    named = f' role="img" aria-label="{escape(title)}"'
    return _SIZE.sub("", head) + named + ">" + rest.strip()


def _inked(tag: str, key: str) -> str:
    tag = _ID.sub(rf'id="{key}-\1"', tag)
    tag = _REFERENCE.sub(rf"\g<1>{key}-\2", tag)
    tag = _FONT.sub(r"font: \g<size> var(--font)", tag)
    return _COLOUR.sub(lambda found: _VARIABLES[found[0]], tag)


# How long a stretch of time may be to be given in seconds, and in times of day.
_SECONDS_SHOWN_DAYS: Final = 10 / 1_440
_TIMES_SHOWN_DAYS: Final = 2.0
LABEL_CHARS: Final = 30
LABEL_CHARS_NARROW: Final = 20


def stack(series: Sequence[Series]) -> Iterator[tuple[Series, list[float]]]:
    """Each series with the height on which it stands; one with no value above zero is left out."""
    floor = [0.0] * max((len(one.values) for one in series), default=0)
    for one in series:
        if any(one.values):
            yield one, list(floor)
        floor = [low + high for low, high in zip(floor, one.values, strict=True)]


def finish_time(axes: Axes, unit: str, is_narrow: bool) -> None:
    """Time along the bottom, counts up the side, the legend above."""
    from matplotlib.dates import AutoDateLocator, DateFormatter
    from matplotlib.ticker import MaxNLocator

    first, last = axes.get_xlim()
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=4 if is_narrow else 8))
    axes.xaxis.set_major_formatter(DateFormatter(_time_format(last - first)))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(_count_tick)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    _finish(axes)


def finish_bars(axes: Axes, labels: Sequence[str], unit: str, is_narrow: bool) -> None:
    """Labels down the side, counts along the bottom."""
    from matplotlib.ticker import MaxNLocator

    _name_rows(axes, labels, is_narrow)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(_count_tick)
    axes.set_xlim(left=0, right=100 if unit == "%" else None)
    axes.set_xlabel(unit)
    _finish(axes)


def finish_spans(axes: Axes, labels: Sequence[str], is_narrow: bool) -> None:
    """Labels down the side, durations in powers of ten along the bottom."""
    from matplotlib.ticker import LogLocator, NullLocator

    _name_rows(axes, labels, is_narrow)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(_ms_tick)
    _finish(axes)


def _name_rows(axes: Axes, labels: Sequence[str], is_narrow: bool) -> None:
    chars = LABEL_CHARS_NARROW if is_narrow else LABEL_CHARS
    axes.set_yticks(range(len(labels)), [shown(label, chars) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="x", color=GRID, linewidth=0.8)


def _finish(axes: Axes) -> None:
    axes.tick_params(length=0, pad=6)
    axes.figure.legend(
        loc="outside upper left", ncols=4, borderaxespad=0.2, handlelength=1.2, columnspacing=1.4
    )


def _time_format(days: float) -> str:
    if days < _SECONDS_SHOWN_DAYS:
        return "%H:%M:%S"
    return "%H:%M" if days < _TIMES_SHOWN_DAYS else "%d %b"


def _count_tick(value: float, _at: int) -> str:
    return f"{value:,.0f}"


def _ms_tick(value: float, _at: int) -> str:
    return ms_text(value)


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
