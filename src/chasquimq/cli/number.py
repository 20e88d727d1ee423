"""Numbers as options take them; what is none is refused in plain words."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import click

PORT_MAX = 65_535
_SHOWN_CHARS_MAX = 40


class WholeNumber(click.IntRange):
    """A whole number between two bounds that belong to it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self._refuse(value, param, ctx)
        if (self.min is not None and number < self.min) or (
            self.max is not None and number > self.max
        ):
            self._refuse(value, param, ctx)
        return number

    def _refuse(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> NoReturn:
        bounds = f"of at least {self.min}" if self.max is None else f"from {self.min} to {self.max}"
        self.fail(f"must be a whole number {bounds}, got {_shown(value)}", param, ctx)


class Rate(click.ParamType[float]):
    """A number of jobs per second: above 0 and finite."""

    name = "float"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"must be a number above 0, got {_shown(value)}", param, ctx)
        return number


AT_LEAST_0 = WholeNumber(0)
AT_LEAST_1 = WholeNumber(1)
PORT = WholeNumber(1, PORT_MAX)
# 0 lets the system choose.
PORT_OR_ANY = WholeNumber(0, PORT_MAX)
RATE = Rate()


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
