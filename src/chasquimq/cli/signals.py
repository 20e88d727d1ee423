"""Hears the signals that end a command which runs for long, and says which exit code they leave."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from chasquimq.cli import interrupts
from chasquimq.cli.interrupts import EXIT_INTERRUPTED
from chasquimq.cli.output.render import talk

if TYPE_CHECKING:
    from logging import LogRecord

# Signals belong to the process, and so does what came of them.
_terms: list[int] = []


class Terminated(KeyboardInterrupt):
    """SIGTERM came where nobody waits for it."""


@contextmanager
def ended_like_an_interrupt() -> Generator[None]:
    """Let a SIGTERM unwind the command, so that what it started and made for itself goes, too."""
    _terms.clear()
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
        raise_if_terminated()
    except Exception as error:
        # What the signal cut off may complain of it in words of its own.
        if _terms:
            raise Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def unwound_in_silence() -> Generator[None]:
    """Let a signal unwind a command that talks to a JVM: the library between them logs the cut."""
    import logging

    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        root.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: LogRecord) -> bool:
    return record.msg != "KeyboardInterrupt while sending command."


def raise_if_terminated() -> None:
    """Raise once more: Python drops what is raised inside a fork, a destructor or a callback."""
    if _terms:
        raise Terminated


def hear_signals(stop: Callable[[int], None]) -> None:
    """Let the running loop call `stop` with the number of each signal that asks for the end."""
    import asyncio  # late, because commands that only print do without it

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


def exit_code_of(number: int | None) -> int:
    """What a command answers that this signal ended; None is one that ended by itself."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else 0


def told_exit_code(number: int | None) -> int:
    """The same, with the line about an interrupt for commands that log nothing."""
    exit_code = exit_code_of(number)
    if exit_code == EXIT_INTERRUPTED:
        talk(interrupts.line())
    return exit_code


def _raise_terminated(number: int, _frame: FrameType | None) -> None:
    _terms.append(number)
    raise Terminated
