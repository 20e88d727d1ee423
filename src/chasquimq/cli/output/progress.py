"""A bar for what takes longer than a second: on a terminal, on stderr, and gone when done."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chasquimq.cli.interrupts import Raising
from chasquimq.cli.output.render import shown

if TYPE_CHECKING:
    from rich.progress import Progress

# What is over sooner needs no bar.
PATIENCE_S = 1.0
# How much is done, and of how much; 0: nobody knows.
Advance = Callable[[int, int], None]
T = TypeVar("T")


@contextmanager
def progress_bar(title: str) -> Generator[Advance]:
    """Tell it how far things are; it draws when there is something to see."""
    bar = _Bar(title)
    try:
        yield bar.advance_to
    finally:
        bar.remove()


async def behind_bar(title: str, work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that cannot tell how far it is; after a second the bar moves anyway."""
    with progress_bar(title) as advance:
        drawing = asyncio.get_running_loop().call_later(PATIENCE_S, advance, 0, 0)
        try:
            return await work
        finally:
            drawing.cancel()


class _Bar:
    def __init__(self, title: str) -> None:
        self._title = title
        self._due_s = time.monotonic() + PATIENCE_S
        self._drawn: Progress | None = None

    def advance_to(self, done: int, total: int) -> None:
        if time.monotonic() < self._due_s:
            return
        if self._drawn is None:
            self._drawn = _new_progress()
            self._drawn.start()
            self._drawn.add_task(self._title)
        self._drawn.update(self._drawn.task_ids[0], completed=done, total=total or None)

    def remove(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()


def _new_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


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
