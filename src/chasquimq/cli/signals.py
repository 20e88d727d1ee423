"""The signals that end a command which runs for long, and the exit code that they leave."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130


class Terminated(KeyboardInterrupt):
    """SIGTERM came where nobody waits for it."""


@contextmanager
def ended_like_an_interrupt() -> Generator[None]:
    """Let a SIGTERM unwind the command, so that what it started and made for itself goes, too."""
    has_come = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True
        raise Terminated

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield
    except Exception as error:
        # What the signal cut off may complain of it in words of its own.
        if has_come:
            raise Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def hear_signals(stop: Callable[[int], None]) -> None:
    """Let the running loop call `stop` with the number of each signal that asks for the end."""
    import asyncio  # late, because commands that only print do without it

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


def exit_code_of(number: int | None) -> int:
    """What a command answers that this signal ended; None is one that ended by itself."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else 0
