"""Processes in which sync handlers run: they can be stopped, and a crash costs one job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from chasquimq.engine.process_pool.child import ANY_NAME, addresses_of
from chasquimq.engine.process_pool.frames import HandlerCall, JobValues, encode_frame, exception_of
from chasquimq.engine.process_pool.process import KILL_AFTER_S, Child, hello_frame
from chasquimq.engine.thread_pool import check_usable, checked_size
from chasquimq.errors import SettingsError
from chasquimq.store.consumer import decode as payloads

REAP_S_MAX = 1.0

Handler: TypeAlias = Callable[[Any], Any]


class ProcessPool:
    """Runs handlers in child processes: they can be stopped, and a crash costs one job.

    Start it inside the event loop that calls it.
    """

    def __init__(self, handlers: Mapping[str, Handler] | Handler, size: int) -> None:
        self._size = checked_size(size)
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
        frame = encode_frame(HandlerCall(self._handler_key(name), values))
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
        check_usable(self._owner_pid, self._is_closed)
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
