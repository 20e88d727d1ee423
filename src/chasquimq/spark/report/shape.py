"""What a report is made of: sections with sentences, tables and drawings, each with its completeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

Kind = Literal["text", "name", "count", "share", "ms", "rate", "moment"]
# Kinds that stand at the left; all others are numbers.
LEFT: Final = ("text", "name", "moment")
Tone = Literal["good", "fair", "bad", "calm", "plain"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `kind` says how its values are shown."""

    name: str
    label: str
    kind: Kind = "text"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; `note` says what was left out of it."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a drawing."""

    label: str
    tone: Tone
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Columns:
    """Stacked columns along time, each `width_s` wide."""

    key: str
    title: str
    moments: Sequence[datetime]
    width_s: float
    series: Sequence[Series]
    unit: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Steps along time."""

    key: str
    title: str
    moments: Sequence[datetime]
    series: Sequence[Series]
    unit: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars, one a label; `marks` are thin lines across them."""

    key: str
    title: str
    labels: Sequence[str]
    series: Sequence[Series]
    unit: str
    marks: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Spans:
    """For each label where the middle, most and nearly all values are, on a scale of powers of ten."""

    key: str
    title: str
    labels: Sequence[str]
    p50_ms: Sequence[float]
    p90_ms: Sequence[float]
    p99_ms: Sequence[float]


Drawing = Columns | Lines | Bars | Spans


@dataclass(frozen=True, slots=True)
class Section:
    """One answer: what is said, shown and drawn, and how much of the truth it rests on.

    `absence` is all there is where nothing was found; then there are no tables.
    """

    key: str
    title: str
    sentences: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    drawings: Sequence[Drawing] = ()
    completeness: str = ""
    absence: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the head of the report: for eyes, and for programs with its unit in its name."""

    label: str
    text: str
    name: str
    value: float | None
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Report:
    """All that a lake has to say, about some queues and a stretch of time."""

    queues: Sequence[str]
    first_at: datetime | None
    last_at: datetime | None
    figures: Sequence[Figure]
    sections: Sequence[Section]
