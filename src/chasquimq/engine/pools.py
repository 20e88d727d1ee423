"""Threads and processes in which sync handlers run, so that the event loop never waits for them."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from chasquimq.engine.child_address import ANY_NAME, addresses_of
from chasquimq.engine.child_errors import ChildDied, RemoteError, exception_of
from chasquimq.engine.child_frames import Call, JobValues, encode_frame
from chasquimq.engine.child_process import KILL_AFTER_S, Child, hello_frame
from chasquimq.errors import SettingsError
from chasquimq.store import payloads

__all__ = ["ChildDied", "ProcessPool", "RemoteError", "ThreadPool"]

REAP_S_MAX = 1.0

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
        self._size = _checked_size(size)
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
        _check_usable(self._owner_pid, self._is_closed)
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
                self._answers.append((call[0], None, _closed_error()))
        self._wake()

    def _wake(self) -> None:
        """One wake-up serves every answer that comes before the loop gets to it."""
        if self._is_waking or self._loop is None:
            return
        self._is_waking = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            # The loop is closed: nobody is left to hear the answer.
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


class ProcessPool:
    """Runs handlers in child processes: they can be stopped, and a crash costs one job.

    Start it inside the event loop that calls it.
    """

    def __init__(self, handlers: Mapping[str, Handler] | Handler, size: int) -> None:
        self._size = _checked_size(size)
        self._addresses = addresses_of(handlers)
        self._owner_pid = os.getpid()
        self._is_closed = False
        self._hello = b""
        self._children: list[Child] = []
        self._idle: list[Child] = []
        self._free = asyncio.Semaphore(size)

    async def start(self) -> None:
        """Start all children and wait for their imports; SettingsError when an import fails."""
        self._hello = hello_frame(self._addresses)
        self._idle = [self._spawn() for _ in range(self._size)]
        try:
            for child in self._idle:
                await child.until_ready()
        except BaseException:
            await self.close(0)
            raise

    async def run(self, name: str, values: JobValues, timeout_ms: int | None = None) -> Any:
        """Run the handler of `name` in a child and return its result.

        Raises:
            JobTimeout: it ran for `timeout_ms` and was killed.
            ChildDied: its process ended before it answered.
            UnrecoverableError, RetryLater: the handler raised one.
            DecodeError: the payload is no MessagePack value.
            RemoteError: the handler raised anything else, or its result has no MessagePack form.
        """
        frame = encode_frame(Call(self._handler_key(name), values))
        async with self._free:
            child = self._take()
            try:
                answer = await child.call(frame, timeout_ms)
            finally:
                self._put_back(child)
        if answer.error is not None:
            raise exception_of(answer.error)
        return payloads.decode(answer.result)

    async def close(self, grace_s: float) -> None:
        """Let running calls end within the grace, then end the children whatever they do."""
        self._is_closed = True
        try:
            for child in self._idle:
                child.stop()
            await self._gone_within(grace_s)
            for child in self._children:
                child.terminate()
            await self._gone_within(KILL_AFTER_S)
        finally:
            for child in self._children:
                child.kill()
        await self._gone_within(REAP_S_MAX)

    def _handler_key(self, name: str) -> str:
        if name in self._addresses:
            return name
        if ANY_NAME in self._addresses:
            return ANY_NAME
        raise SettingsError("handlers", name, f"asked for one of {sorted(self._addresses)}")

    def _take(self) -> Child:
        _check_usable(self._owner_pid, self._is_closed)
        assert self._idle, "a process pool is started before it runs anything"
        child = self._idle.pop()
        try:
            return child if child.is_usable else self._spawn()
        except OSError:
            # No memory or no pid for a new child now: the slot stays, and the next call tries.
            self._idle.append(child)
            raise

    def _put_back(self, child: Child) -> None:
        if self._is_closed:
            child.stop()
            return
        if not child.is_usable:
            # The new child imports while the next job is still on its way.
            with suppress(OSError):
                child = self._spawn()
        self._idle.append(child)

    def _spawn(self) -> Child:
        child = Child(self._hello)
        self._children = [one for one in self._children if not one.exited.done()]
        self._children.append(child)
        return child

    async def _gone_within(self, timeout_s: float) -> None:
        exits = [child.exited for child in self._children if not child.exited.done()]
        if exits:
            await asyncio.wait(exits, timeout=timeout_s)


def _checked_size(size: int) -> int:
    if size < 1:
        raise SettingsError("size", size, "at least 1")
    return size


def _check_usable(owner_pid: int, is_closed: bool) -> None:
    if is_closed:
        raise _closed_error()
    if os.getpid() != owner_pid:
        raise RuntimeError("a pool belongs to the process that made it; make a new one after fork")


def _closed_error() -> RuntimeError:
    return RuntimeError("the pool is closed and starts nothing more")


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
