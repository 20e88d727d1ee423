"""Talks with the person at a terminal: asks before something is deleted, and shows progress."""

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
from chasquimq.cli.output.tables import can_redraw

if TYPE_CHECKING:
    from rich.progress import Progress

# What is over sooner needs no bar.
PATIENCE_S = 1.0
# How much is done, and of how much; 0: unknown.
Advance = Callable[[int, int], None]
# What goes on now.
Update = Callable[[str], None]
T = TypeVar("T")


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
        # A person ends the line by answering; here there was none.
        click.echo(err=True)
    return answer


@contextmanager
def progress_bar(title: str, patience_s: float = PATIENCE_S) -> Generator[Advance]:
    """Report to it how far things are; it draws when there is something to see."""
    line = _Line(title, patience_s, has_bar=True)
    try:
        yield line.advance_to
    finally:
        line.remove()


async def behind_bar(title: str, work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that cannot report how far it is; after a second the bar moves anyway."""
    with progress_bar(title) as advance:
        drawing = asyncio.get_running_loop().call_later(PATIENCE_S, advance, 0, 0)
        try:
            return await work
        finally:
            drawing.cancel()


@contextmanager
def working(what: str) -> Generator[Update]:
    """A line that moves from the beginning until the work is done; it shows the text it is given."""
    line = _Line(f"{what} …", 0.0, has_bar=False)
    try:
        line.say(f"{what} …")
        yield line.say
    finally:
        line.remove()


class _Line:
    """The last line of the terminal, drawn when its time has come; in a pipe there is none."""

    def __init__(self, title: str, patience_s: float, *, has_bar: bool) -> None:
        self._title = title
        self._has_bar = has_bar
        self._due_s = time.monotonic() + patience_s
        self._drawn: Progress | None = None

    def advance_to(self, done: int, total: int) -> None:
        self._update(completed=done, total=total or None)

    def say(self, text: str) -> None:
        self._update(description=text)

    def remove(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()

    def _update(self, **shown: Any) -> None:
        if time.monotonic() < self._due_s or not can_redraw(sys.stderr):
            return
        if self._drawn is None:
            self._drawn = _new_progress(has_bar=self._has_bar)
            self._drawn.start()
            self._drawn.add_task(self._title, total=None)
        self._drawn.update(self._drawn.task_ids[0], **shown)


def _new_progress(*, has_bar: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    # No markup: square brackets in a text are no colours.
    text = TextColumn("{task.description}", markup=False)
    bar = (text, BarColumn(), MofNCompleteColumn(separator=" of "))
    columns = bar if has_bar else (SpinnerColumn(), text)
    return Progress(*columns, console=Console(stderr=True), transient=True)
