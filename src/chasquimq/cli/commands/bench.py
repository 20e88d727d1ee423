"""`chasqui bench`: runs the benchmarks of a checkout, which an installed package does not hold."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click

from chasquimq.errors import NotSupportedError

CHECKOUT = Path(__file__).parents[4]


@click.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def not_in_a_checkout() -> None:
    """Measure this queue beside its peers; needs a checkout of the project."""
    raise NotSupportedError(
        "chasqui bench needs a checkout of the project, and this is an installed package without "
        "the benchmarks; run ./chasqui bench in a checkout"
    )


def _benchmarks(checkout: Path) -> click.Command:
    if not (checkout / "benchmarks" / "command.py").is_file():
        return not_in_a_checkout
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    return import_module("benchmarks.command").bench


bench = _benchmarks(CHECKOUT)
