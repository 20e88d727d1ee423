"""Axes, grids and legends of the drawings, all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from chasquimq.spark.charts_ink import GRID
from chasquimq.spark.report_format import ms_text, shown
from chasquimq.spark.report_shape import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# How long a stretch of time may be to be told in seconds, and in times of day.
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
