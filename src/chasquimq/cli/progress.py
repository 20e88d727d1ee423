"""A bar for what takes longer than a second: on a terminal, on stderr, and gone when done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

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
