"""Asks before something is deleted or sent: yes or no, or the name of the thing in full."""

from __future__ import annotations

import sys

import click

from chasquimq.cli.interrupts import Raising
from chasquimq.cli.output.render import shown


def confirm(question: str) -> None:
    """Go on after y or yes; anything else ends the command with exit code 1."""
    if _answer(f"{question} [y/N] ").lower() not in ("y", "yes"):
        raise click.Abort


def confirm_name(question: str, name: str, *, of: str = "queue") -> None:
    """Go on when the name is typed in full."""
    if _answer(f"{question}\ntype the {of}'s name to go on: ") != name:
        raise click.Abort


def is_answered_by_a_person() -> bool:
    return sys.stdin.isatty()


def _answer(question: str) -> str:
    click.echo("\n".join(map(shown, question.split("\n"))), nl=False, err=True)
    with Raising():
        # Bytes, because a pipe may hold anything.
        answer = sys.stdin.buffer.readline().decode(errors="replace").strip()
    if not is_answered_by_a_person():
        # A person ends the line by answering; here nobody did.
        click.echo(err=True)
    return answer
