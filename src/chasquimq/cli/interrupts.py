"""Ends the program at Ctrl+C, at any moment, with one line on stderr and exit code 130.

While nothing has to be put right the process leaves at once: during imports, and after the answer.
While a command runs Ctrl+C unwinds it, so that files, servers and JVMs of its own go, too; what it
says then replaces whatever libraries would say of being cut off. A second Ctrl+C ends it at once.
"""

from __future__ import annotations

# In the interpreter itself: `signal` would import other modules before it can answer.
import _signal  # pyright: ignore[reportMissingModuleSource]
import atexit
import os
import sys
import time

# `typing` takes longer to import than all of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import FrameType, TracebackType
    from typing import Any, Self, TypeVar

    T = TypeVar("T")

EXIT_INTERRUPTED = 130
# Wrappers forward the Ctrl+C that the terminal sends to all processes: twice within this is once.
SECOND_AFTER_S = 0.5
# What Python drops, as an exception in a destructor, is raised again so much later.
_AGAIN_AFTER_S = 0.02
_SHOW_CURSOR = b"\x1b[?25h"


class _State:
    """What came of Ctrl+C; signals belong to the process, and so does this."""

    def __init__(self) -> None:
        self.pid = 0
        self.came_s: float | None = None
        self.is_said = False
        self.done_so_far = ""
        self.exit_code = EXIT_INTERRUPTED
        self.cancel: Callable[[], object] | None = None


_state = _State()


def answer_from_here_on() -> None:
    """Let Ctrl+C end this process, also one that came while the interpreter started.

    A process that has to ignore it, as one in the background, goes on to ignore it.
    """
    _state.pid = os.getpid()
    # The first that is registered is the last that is done: the interpreter answers no more then.
    atexit.register(_signal.signal, _signal.SIGINT, _signal.SIG_IGN)
    _install(_leave_at_once)
    # The bootstrap blocks it until a handler is installed.
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGINT})


def end_quietly(exit_code: int) -> int:
    """All is done and said: from here on Ctrl+C only hastens the end."""
    _state.exit_code = exit_code
    _state.is_said = True
    _install(_leave_at_once)
    if exit_code == EXIT_INTERRUPTED:
        # The interpreter would wait for threads that are not needed any more, and kills itself by
        # the signal where that was raised while it compiled something.
        atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        _flush()
        os._exit(exit_code)
    return exit_code


def has_come() -> bool:
    """Whether this command was interrupted."""
    return _state.came_s is not None


def note_done(done_so_far: str) -> None:
    """What the one line shall say was done, if the command is interrupted."""
    _state.done_so_far = done_so_far


def line() -> str:
    """The one line about an interrupt."""
    done = _state.done_so_far
    return f"interrupted: {done}" if done else "interrupted"


def is_said() -> bool:
    """Whether the line was written already."""
    return _state.is_said


def mark_said() -> None:
    """The line is written; a second one would be one too many."""
    _state.is_said = True


class Unwinding:
    """While it is open Ctrl+C raises KeyboardInterrupt, or cancels the task that runs.

    Whatever the command makes of that, it leaves this block as a KeyboardInterrupt.
    """

    def __enter__(self) -> Self:
        _state.came_s, _state.done_so_far, _state.cancel = None, "", None
        if _is_program():
            _install(_unwind)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _is_program():
            _install(_leave_at_once)
        if has_come() and not isinstance(error, KeyboardInterrupt):
            # What it cut off may complain in words of its own, or not at all.
            raise KeyboardInterrupt from None


class Raising:
    """While it is open Ctrl+C raises at once: nothing else ends a read that waits for a person."""

    def __enter__(self) -> Self:
        self._cancel, _state.cancel = _state.cancel, None
        if has_come():
            raise KeyboardInterrupt
        return self

    def __exit__(self, *_: object) -> None:
        _state.cancel = self._cancel


async def cancelled_by_interrupt(work: Coroutine[Any, Any, T]) -> T:
    """Wait for the work; Ctrl+C cancels it, so that it ends where it waits and nowhere else."""
    import asyncio
    import threading

    if threading.current_thread() is not threading.main_thread():
        return await work
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine that runs has a task"

    def cancel() -> None:
        task.cancel()
        # The loop may be waiting for the network.
        loop.call_soon_threadsafe(int)

    before, _state.cancel = _state.cancel, cancel
    try:
        return await work
    finally:
        _state.cancel = before


def raise_again_soon() -> None:
    """An interrupt was dropped on its way, as by a destructor: raise it where it can be handled."""
    if _is_program() and _signal.getsignal(_signal.SIGINT) is _unwind:
        _signal.signal(_signal.SIGALRM, _again)
        _signal.setitimer(_signal.ITIMER_REAL, _AGAIN_AFTER_S)


def _unwind(_number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _state.pid:
        # A child that has not become another program yet.
        os._exit(EXIT_INTERRUPTED)
    now_s = time.monotonic()
    if _state.came_s is None:
        _state.came_s = now_s
        _hush()
        if _state.cancel is None:
            raise KeyboardInterrupt
        _state.cancel()
    elif now_s - _state.came_s > SECOND_AFTER_S:
        _leave_at_once(_number, _frame)


def _again(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _leave_at_once(_number: int, _frame: FrameType | None) -> None:
    if os.getpid() == _state.pid and not _state.is_said:
        # A bar that was on the screen hid the cursor.
        shown = _SHOW_CURSOR if has_come() and os.isatty(2) else b""
        os.write(2, shown + line().encode(errors="replace") + b"\n")
    os._exit(_state.exit_code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # Who read it is gone, or it was closed.
            continue


def _hush() -> None:
    logging = sys.modules.get("logging")
    if logging is not None:
        logging.disable(logging.CRITICAL)


def _install(answer: Callable[[int, FrameType | None], None]) -> None:
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, answer)


def _is_program() -> bool:
    """Whether the process is ours, and not one that calls a command as a function."""
    return os.getpid() == _state.pid
