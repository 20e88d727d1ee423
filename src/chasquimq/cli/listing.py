"""Lists of what is on a queue: rows for people, facts for programs, a word for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from chasquimq.cli.render import Row, emit_json, emit_table

T = TypeVar("T")


def emit_list(
    found: Sequence[T],
    as_json: bool,
    *,
    facts: Callable[[T], dict[str, Any]],
    row: Callable[[T], Row],
    nothing: str,
    text: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print what was found; that nothing was is talk, and goes to stderr."""
    if as_json:
        emit_json([facts(one) for one in found])
    elif found:
        emit_table([row(one) for one in found], text=text, optional=optional)
    else:
        click.echo(nothing, err=True)
