"""Runs plain functions in threads, so that the event loop never waits for them."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from chasquimq.errors import SettingsError


def checked_size(size: int) -> int:
    """The size, which must be positive."""
    if size < 1:
        raise SettingsError("size", size, "at least 1")
    return size


def check_usable(owner_pid: int, is_closed: bool) -> None:
    """Refuse what comes too late, or from a fork that inherited no thread and no child."""
    if is_closed:
        raise closed_error()
    if os.getpid() != owner_pid:
        raise RuntimeError("a pool belongs to the process that made it; make a new one after fork")


def closed_error() -> RuntimeError:
    """What callers of a closed pool get."""
    return RuntimeError("the pool is closed and starts nothing more")


Handler: TypeAlias = Callable[[Any], Any]
_Waiting: TypeAlias = "asyncio.Future[Any]"
_ThreadCall: TypeAlias = tuple[_Waiting, contextvars.Context, Handler, object]
_ThreadAnswer: TypeAlias = tuple[_Waiting, Any, BaseException | None]


class ThreadPool:
    """Runs handlers in daemon threads, one event loop at a time.

    A thread cannot be stopped: when the caller is cancelled it goes on, and what it
    answers then is dropped.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = checked_size(size)
        self._name = name
        self._owner_pid = os.getpid()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[threading.Thread] = []
        self._calls: queue.SimpleQueue[_ThreadCall | None] = queue.SimpleQueue()
        self._answers: deque[_ThreadAnswer] = deque()
        self._unanswered_count = 0
        self._is_waking = False

    async def run(self, call: Handler, job: object) -> Any:
        """Run `call(job)` in a thread and a context of its own; raises what it raises."""
        check_usable(self._owner_pid, self._is_closed)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._adopt(loop)
        waiting = loop.create_future()
        self._unanswered_count += 1
        if len(self._threads) < self._size and len(self._threads) < self._unanswered_count:
            self._start_thread()
        self._calls.put((waiting, contextvars.copy_context(), call, job))
        try:
            return await waiting
        finally:
            # The traceback keeps this frame: without the name, error and future form no cycle.
            del waiting

    def close(self) -> None:
        """Start nothing more and return at once; a thread ends after its current call."""
        if self._is_closed:
            return
        self._is_closed = True
        self._refuse_unstarted()
        for _ in self._threads:
            self._calls.put(None)

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        # A wake-up sent to a loop that was closed before it ran will never come.
        self._loop = loop
        self._is_waking = False

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            waiting, context, handler, job = call
            value, error = None, None
            if not waiting.cancelled():
                value, error = _outcome_of(context, handler, job)
            self._answers.append((waiting, value, error))
            # An idle thread must not keep the last job alive.
            del call, waiting, context, handler, job, value, error
            self._wake()

    def _refuse_unstarted(self) -> None:
        with suppress(queue.Empty):
            while call := self._calls.get_nowait():
                self._answers.append((call[0], None, closed_error()))
        self._wake()

    def _wake(self) -> None:
        """One wake-up serves every answer that comes before the loop gets to it."""
        if self._is_waking or self._loop is None:
            return
        self._is_waking = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            # The loop is closed, and no caller waits for the answer.
            self._is_waking = False

    def _deliver(self) -> None:
        # Cleared before the drain: an answer that comes amid it wakes again rather than never.
        self._is_waking = False
        while self._answers:
            waiting, value, error = self._answers.popleft()
            self._unanswered_count -= 1
            if waiting.done() or waiting.get_loop() is not self._loop:
                continue
            if error is None:
                waiting.set_result(value)
            else:
                waiting.set_exception(error)


def _outcome_of(
    context: contextvars.Context, handler: Handler, job: object
) -> tuple[Any, BaseException | None]:
    try:
        return context.run(handler, job), None
    except StopIteration as stop:
        # A future refuses StopIteration: it would end the coroutine that awaits it.
        error = RuntimeError("the handler raised StopIteration")
        error.__cause__ = stop
        return None, error
    # Whatever it raises belongs to the caller, and the thread lives on.
    except BaseException as error:  # noqa: BLE001 - the user's code
        return None, error
