"""Offers the same Queue to code without an event loop: Flask, Django, scripts.

    from chasquimq.blocking import Queue

    with Queue("mails") as queue:
        queue.add("welcome", {"to": "ada"})

One loop in a thread of its own serves all queues of a process, so a queue may be kept in a
global, shared by threads, and used after a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from chasquimq.errors import NotSupportedError
from chasquimq.queue.queue import Queue as AsyncQueue

__all__ = ["Queue"]

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate[AsyncQueue, P], Coroutine[Any, Any, R]]


def _blocking(method: Method[P, R]) -> Callable[Concatenate[Queue, P], R]:
    """A method of the same name, arguments and answer that waits."""

    @wraps(method)
    def call(self: Queue, *args: P.args, **options: P.kwargs) -> R:
        ask = self._wait  # pyright: ignore[reportPrivateUsage]  it becomes a method of that class
        return ask(lambda queue: method(queue, *args, **options))

    return call


def _made_like(
    init: Callable[Concatenate[AsyncQueue, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Queue, P], None]]:
    """Give an `__init__` the arguments of another."""
    return wraps(init)


class Queue:
    """One queue, from the outside; every call waits until it is done.

    Ctrl+C ends a wait; the call itself may still happen.

    Raises:
        NotSupportedError: a method was called inside a running event loop, which it would
            stop; use `chasquimq.Queue` there.
    """

    @_made_like(AsyncQueue.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._make = lambda: AsyncQueue(*args, **options)
        self._queue = self._make()
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def is_closed(self) -> bool:
        return self._queue.is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    add = _blocking(AsyncQueue.add)
    add_unique = _blocking(AsyncQueue.add_unique)
    add_bulk = _blocking(AsyncQueue.add_bulk)
    cancel_delayed = _blocking(AsyncQueue.cancel_delayed)
    cancel_delayed_bulk = _blocking(AsyncQueue.cancel_delayed_bulk)
    cancel_delayed_where = _blocking(AsyncQueue.cancel_delayed_where)
    drain = _blocking(AsyncQueue.drain)
    upsert_repeatable_job = _blocking(AsyncQueue.upsert_repeatable_job)
    get_repeatable_jobs = _blocking(AsyncQueue.get_repeatable_jobs)
    remove_repeatable_by_key = _blocking(AsyncQueue.remove_repeatable_by_key)
    run_repeatable_now = _blocking(AsyncQueue.run_repeatable_now)
    quarantined_repeatables = _blocking(AsyncQueue.quarantined_repeatables)
    get_job_result = _blocking(AsyncQueue.get_job_result)
    get_job_result_bulk = _blocking(AsyncQueue.get_job_result_bulk)
    wait_for_result = _blocking(AsyncQueue.wait_for_result)
    get_job = _blocking(AsyncQueue.get_job)
    peek_dlq = _blocking(AsyncQueue.peek_dlq)
    replay_dlq = _blocking(AsyncQueue.replay_dlq)
    purge_dlq = _blocking(AsyncQueue.purge_dlq)
    import_dlq = _blocking(AsyncQueue.import_dlq)
    counts = _blocking(AsyncQueue.counts)
    close = _blocking(AsyncQueue.close)

    def _wait(self, ask: Callable[[AsyncQueue], Coroutine[Any, Any, R]]) -> R:
        _refuse_inside_a_loop()
        loop = _shared_loop()
        future = asyncio.run_coroutine_threadsafe(ask(self._own_queue()), loop)
        try:
            return future.result()
        except BaseException:
            # A caller that stopped waiting, with Ctrl+C for one, wants no answer any more.
            future.cancel()
            raise

    def _own_queue(self) -> AsyncQueue:
        with _lock:
            if self._pid != os.getpid() and not self._queue.is_closed:
                # A connection belongs to the process that opened it.
                self._queue, self._pid = self._make(), os.getpid()
            return self._queue


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise NotSupportedError(
        "chasquimq.blocking.Queue must be used outside of event loops, and this one is running; "
        "use chasquimq.Queue here"
    )


def _shared_loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="chasqui-blocking", daemon=True).start()
        return loop


def _renew_lock() -> None:
    # A thread of the parent may hold it, and that thread does not exist here.
    global _lock  # noqa: PLW0603  one lock for each process
    _lock = threading.Lock()


_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
