"""Lists the command line: every command with its arguments and options, without their prose."""

from __future__ import annotations

from collections.abc import Iterator

import click

from chasquimq.cli.app import PROGRAM, chasqui


def commands() -> Iterator[str]:
    """Every command, its line of help, and all that it takes."""
    yield from _lines(PROGRAM, chasqui)


def _lines(path: str, command: click.Command) -> Iterator[str]:
    ctx = click.Context(command, info_name=path)
    yield from (
        "",
        f"{path} {_taken(command, ctx)}".rstrip(),
        f"    {command.get_short_help_str(200)}",
    )
    for option in command.params:
        if isinstance(option, click.Option):
            yield f"    {_option(option, ctx)}"
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(ctx)):
            below = command.get_command(ctx, name)
            assert below is not None, f"{path} lists {name} and must have it"
            yield from _lines(f"{path} {name}", below)


def _taken(command: click.Command, ctx: click.Context) -> str:
    """The arguments by position, as the first line of the help has them."""
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    return " ".join(word for one in arguments for word in one.get_usage_pieces(ctx))


def _option(option: click.Option, ctx: click.Context) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag or option.count else f" {option.make_metavar(ctx)}"
    return f"{names}{value}{''.join(f' [{word}]' for word in _traits(option))}"


def _traits(option: click.Option) -> Iterator[str]:
    yield from (name for name in ("required", "multiple", "hidden") if getattr(option, name))
    if isinstance(option.type, click.IntRange | click.FloatRange):
        yield option.type._describe_range()
    if option.envvar:
        yield f"variable {option.envvar}"
    given = option.to_info_dict()["default"]
    if given is not None and not option.is_flag and "UNSET" not in repr(given):
        yield f"default {given}"
