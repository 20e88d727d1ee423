"""Colours, fonts and ids of drawings: stand-ins while they are made, the page's own afterwards."""

from __future__ import annotations

import re
from html import escape
from typing import Final

from chasquimq.spark.report_shape import Tone

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
