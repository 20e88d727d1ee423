"""`chasqui completion`: the script that teaches a shell our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from chasquimq.cli.app import COMPLETION_VARIABLE, PROGRAM, chasqui

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in SHELL.

    \b
    bash: eval "$(chasqui completion bash)"
    zsh:  eval "$(chasqui completion zsh)"
    fish: chasqui completion fish > ~/.config/fish/completions/chasqui.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "the choice offers only shells that are known"
    script = kind(chasqui, {}, PROGRAM, COMPLETION_VARIABLE)
    click.echo(script.source_template % script.source_vars())
