"""Lets one object serve several event loops: each gets connections of its own, closed with it.

A connection belongs to the loop that opened it. What is kept at module level is used in many:
`asyncio.run` twice, a thread with a loop of its own, a view of a web framework.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.store.net.connection import close_dead, connections_of, this_process

# How long another thread's loop may take to close what is its own.
_CLOSE_S_MAX = 5.0


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class PerLoop(Generic[T]):
    """One value for each event loop, made when that loop first asks for it.

    The value of a loop that ends is closed: by the loop, if it shuts down its asynchronous
    generators as `asyncio.run` does, else by the next loop that comes.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._places: dict[asyncio.AbstractEventLoop, _Place[T]] = {}
        # Nearly every program has one loop, and asks for the same again and again. None after a
        # fork and after `close`, so that only the loop has to be looked at.
        self.latest: _Place[T] | None = None
        self._is_closed = False
        _all.add(self)

    def here(self) -> T:
        """The value of the running loop.

        Raises:
            StoreError: this process was forked from one that has values, or all were closed.
        """
        place = self.latest
        if place is not None and place.is_here():
            return place.value
        return self._enter(asyncio.get_running_loop()).value

    def values(self) -> list[T]:
        """Those of all loops."""
        with _lock:
            return [place.value for place in self._places.values()]

    async def close(self) -> None:
        """Close the values of all loops, each in its own."""
        with _lock:
            places = [place for place in self._places.values() if place.is_of_this_process]
            self._places.clear()
            self.latest, self._is_closed = None, True
        for place in places:
            await place.close()
        close_dead()

    def _enter(self, loop: asyncio.AbstractEventLoop) -> _Place[T]:
        with _lock:
            place = self._places.get(loop)
            if place is None:
                self._check_open()
                self._forget_dead()
                self._check_process()
                place = self._places[loop] = _Place(loop, self._make(), self._forget)
            place.check_process()
            place.thread_id = threading.get_ident()
            self.latest = place
        return place

    def _forget_dead(self) -> None:
        """Without this a loop that is gone would keep its socket for as long as we live."""
        close_dead()
        self._places = {loop: one for loop, one in self._places.items() if not loop.is_closed()}

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost("this connection was closed; open a new one", outcome="not_done")

    def _check_process(self) -> None:
        for place in self._places.values():
            place.check_process()

    def _forget(self, place: _Place[T]) -> None:
        with _lock:
            if self._places.get(place.loop) is place:
                del self._places[place.loop]
            if self.latest is place:
                self.latest = None


class _Place(Generic[T]):
    """One loop and what belongs to it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, value: T, forget: Callable[[_Place[T]], None]
    ) -> None:
        self.loop = loop
        self.value = value
        self.thread_id = threading.get_ident()
        self._pid = this_process.pid
        self._forget = forget
        self._keeper = self._keep()
        _start(self._keeper)

    def is_here(self) -> bool:
        # What runs in the loop's thread while it runs is called by it; to ask for the running
        # loop would ask the kernel.
        return self.loop.is_running() and threading.get_ident() == self.thread_id

    @property
    def is_of_this_process(self) -> bool:
        return self._pid == this_process.pid

    def check_process(self) -> None:
        if not self.is_of_this_process:
            raise StoreError(
                "a connection must be used by the process that opened it; "
                "open a new Queue or Worker after a fork"
            )

    async def close(self) -> None:
        """Close the value, in whatever state its loop is."""
        if self.loop is asyncio.get_running_loop():
            await self._close_here()
        elif self.loop.is_running():
            await self._close_there()
        elif not self.loop.is_closed():
            # Its sockets close as soon as it runs again.
            for connection in connections_of(self.loop):
                connection.abort("the connection was closed")

    async def _close_there(self) -> None:
        """Close in the loop of another thread; one that ends meanwhile has closed by itself."""
        closed: Future[None] = Future()
        try:
            self.loop.call_soon_threadsafe(self._begin_closing, closed)
        except RuntimeError:  # it has just ended
            return
        ended = asyncio.wrap_future(closed)
        await asyncio.wait([ended], timeout=_CLOSE_S_MAX)
        if not ended.cancel():
            ended.result()

    def _begin_closing(self, closed: Future[None]) -> None:
        # The coroutine is made here: a loop that never gets here leaves none that is not awaited.
        task = self.loop.create_task(self._close_here())
        task.add_done_callback(lambda _: _pass_on(task, closed))

    async def _close_here(self) -> None:
        await self._keeper.aclose()

    async def _keep(self) -> AsyncGenerator[None]:
        """Wait for the end: loops close generators that are open when they shut down."""
        try:
            yield
        finally:
            self._forget(self)
            await self.value.close()


def _pass_on(task: asyncio.Task[None], closed: Future[None]) -> None:
    # A loop that ends meanwhile cancels the task, which is no cancel of the caller.
    error = None if task.cancelled() else task.exception()
    with suppress(InvalidStateError):  # the caller waited long enough
        if error is None or isinstance(error, RuntimeError):
            closed.set_result(None)
        else:
            closed.set_exception(error)


def _start(keeper: AsyncGenerator[None]) -> None:
    # Up to its first yield it waits for nothing, so that it runs without a task.
    with suppress(StopIteration):
        keeper.__anext__().__await__().send(None)


def _reset_after_fork() -> None:
    # A thread of the parent may hold the lock, and that thread does not exist here.
    global _lock  # noqa: PLW0603  one lock for each process
    _lock = threading.Lock()
    for one in list(_all):
        one.latest = None


_lock = threading.Lock()
_all: WeakSet[PerLoop[Any]] = WeakSet()
os.register_at_fork(after_in_child=_reset_after_fork)
