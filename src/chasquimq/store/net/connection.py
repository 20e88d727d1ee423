"""Sends requests in order and matches replies in order on one open connection, with deadlines.

The client library dials, does TLS and AUTH; then this protocol takes the transport over, because
parsing replies straight from the socket costs a tenth of going through the library. With it come
the clock of the server that it leads to, and a reply that gathers those of several pieces.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast
from weakref import WeakValueDictionary

import hiredis

from chasquimq.errors import ConnectionLost, StoreError
from chasquimq.store.net.errors import error_from_reply

Reply = Any  # whatever RESP2 can say: bytes, int, None, a list of these, or a StoreError
Part = bytes | str | int
# All replies to a request, or why there will be none.
End = list[Reply] | ConnectionLost
OnEnd = Callable[[End], None]

_WATCH_MS_MAX = 1_000


class _ThisProcess:
    """Knows its own number without asking the kernel for every command."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def learn(self) -> None:
        self.pid = os.getpid()


this_process = _ThisProcess()
os.register_at_fork(after_in_child=this_process.learn)
# Those that live, so that one whose loop has ended can be found.
_living: WeakValueDictionary[int, Connection] = WeakValueDictionary()


class Connection(asyncio.Protocol):
    """A taken-over transport; `opening.open_connection` gets one."""

    def __init__(self, owner: Any, command_timeout_ms: int) -> None:
        self._owner_pid = this_process.pid
        self._timeout_s = command_timeout_ms / 1000
        self._reader = hiredis.Reader(replyError=error_from_reply)
        self._waiting: deque[_Waiter] = deque()
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._lost: ConnectionLost | None = None
        self.closed = self.loop.create_future()
        self._stream, self._transport = _take_over(owner, self)
        self._watch = self.loop.call_later(self._watch_s, self._check_deadline)
        _living[id(self)] = self

    @property
    def is_open(self) -> bool:
        return self._lost is None

    @property
    def has_unanswered(self) -> bool:
        return bool(self._waiting)

    def send(
        self, request: bytes, reply_count: int = 1, *, block_ms: int = 0
    ) -> asyncio.Future[list[Reply]]:
        """Write the request now; the future holds its replies, error replies included."""
        self.check_caller()
        future: asyncio.Future[list[Reply]] = self.loop.create_future()
        self.post(request, reply_count, partial(_settle, future), block_ms=block_ms)
        return future

    def post(self, request: bytes, reply_count: int, on_end: OnEnd, *, block_ms: int = 0) -> None:
        """Write the request now; `on_end` gets its end at once, not a round of the loop later.

        It must not raise: other callers that wait for answers would not get theirs. The caller is one
        that `check_caller` lets pass.
        """
        if self._lost is not None:
            on_end(self._not_sent())
            return
        # The server is at work while the books are kept.
        self._transport.write(request)
        deadline = self.loop.time() + self._timeout_s + block_ms / 1000
        self._waiting.append(_Waiter(reply_count, on_end, deadline))

    def after_all_sent(self, then: Callable[[], object]) -> None:
        """Call back as soon as all that was sent up to now is answered, or lost."""
        if not self._waiting:
            then()
            return
        self._waiting[-1].after.append(then)

    async def call(self, *parts: Part, block_ms: int = 0) -> Reply:
        """One command, one reply; an error reply is raised."""
        (reply,) = await self.send(pack(parts), block_ms=block_ms)
        if isinstance(reply, StoreError):
            raise reply
        return reply

    def check_caller(self) -> None:
        """Refuse a process or an event loop that could only wait in vain."""
        if self._owner_pid != this_process.pid:
            raise StoreError(
                "a connection must be used by the process that opened it; "
                "open a new Queue or Worker after a fork"
            )
        # What runs in the loop's thread while it runs is called by it; the other way to know
        # asks the kernel.
        if self.loop.is_running() and threading.get_ident() == self._thread_id:
            return
        if self.loop is not asyncio.get_running_loop():
            raise StoreError(
                "a connection must be used in the event loop that opened it, found another; a "
                "Worker belongs to one loop, and a Queue opens a connection in each"
            )

    def abort(self, reason: str) -> None:
        """Drop the connection at once; every waiter learns that its outcome is unknown."""
        self._transport.abort()
        self._fail(reason)

    async def close(self) -> None:
        """Say nothing more and wait until the socket is closed."""
        self._transport.close()
        self._fail("the connection was closed")
        await asyncio.wait([self.closed], timeout=1)
        if not self.closed.done():
            # The server takes no more bytes: what is left in the buffer is of no use.
            self._transport.abort()
            await asyncio.wait([self.closed], timeout=1)

    def close_dead(self) -> None:
        """Close the socket of a loop that has ended and can close nothing any more."""
        if self._lost is None:
            self._lost = ConnectionLost("the connection was closed: its event loop has ended")
        _close_socket(self._transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            self._answer()
        except hiredis.ProtocolError as error:
            self.abort(f"the server must speak RESP, found: {error}")

    def _answer(self) -> None:
        gets, waiting = self._reader.gets, self._waiting
        while (reply := gets()) is not False:
            if not waiting:
                self.abort("the server must speak when asked, found an answer to no question")
                return
            waiter = waiting[0]
            replies = waiter.replies
            replies.append(reply)
            # Most replies are one of many to the same waiter: nothing else is looked at for them.
            for _ in range(waiter.reply_count - len(replies)):
                if (reply := gets()) is False:
                    return
                replies.append(reply)
            waiting.popleft()
            waiter.end(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "the server closed the connection")
        if not self.closed.done():
            self.closed.set_result(None)

    def eof_received(self) -> bool:
        return False

    @property
    def _watch_s(self) -> float:
        return min(_WATCH_MS_MAX / 1000, self._timeout_s / 4)

    def _check_deadline(self) -> None:
        if self._lost is not None:
            return
        next_s = self.loop.time() + self._watch_s
        if self._waiting:
            deadline = self._waiting[0].deadline
            if deadline <= self.loop.time():
                self.abort(f"the server gave no answer within {self._timeout_s:g} s")
                return
            next_s = min(next_s, deadline)
        self._watch = self.loop.call_at(next_s, self._check_deadline)

    def _fail(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = ConnectionLost(f"the connection to the server broke: {reason}")
        self._watch.cancel()
        while self._waiting:
            self._waiting.popleft().end(ConnectionLost(str(self._lost)))

    def _not_sent(self) -> ConnectionLost:
        return ConnectionLost(str(self._lost), outcome="not_done")


class _Waiter:
    __slots__ = ("_after", "deadline", "on_end", "replies", "reply_count")

    def __init__(self, reply_count: int, on_end: OnEnd, deadline: float) -> None:
        self.reply_count = reply_count
        self.replies: list[Reply] = []
        self.on_end = on_end
        self._after: list[Callable[[], object]] | None = None
        self.deadline = deadline

    @property
    def after(self) -> list[Callable[[], object]]:
        """What is called when this one has ended; any number may wait for that."""
        if self._after is None:
            self._after = []
        return self._after

    def end(self, end: End) -> None:
        """Pass the end on, then call back those that waited for it."""
        self.on_end(end)
        for then in self._after or ():
            then()


class GatheredReplies:
    """The replies to the pieces of one write, or the first loss among them."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self._replies: list[Reply] = []
        self._lost: ConnectionLost | None = None
        # The sender itself counts until all pieces have left.
        self._missing = 1

    def expect(self) -> None:
        self._missing += 1

    def add(self, end: End) -> None:
        if not isinstance(end, ConnectionLost):
            self._replies += end
        elif self._lost is None:
            # Where one piece was answered, the write as a whole has left.
            self._lost = ConnectionLost(str(end)) if self._replies else end
        self.all_sent()

    def all_sent(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._on_end(self._replies if self._lost is None else self._lost)


def connections_of(loop: asyncio.AbstractEventLoop) -> list[Connection]:
    """Those that this loop opened."""
    return [one for one in _all_living() if one.loop is loop]


def close_dead() -> None:
    """Close the sockets of loops that have ended without closing them."""
    for connection in _all_living():
        if connection.loop.is_closed() and not connection.closed.done():
            connection.close_dead()


def _all_living() -> list[Connection]:
    # A copy made in one step: other threads may open connections meanwhile.
    found = [reference() for reference in _living.valuerefs()]
    return [connection for connection in found if connection is not None]


def replies_of(end: End) -> list[Reply]:
    """The replies; a loss is raised."""
    if isinstance(end, ConnectionLost):
        raise end
    return end


def _settle(future: asyncio.Future[list[Reply]], end: End) -> None:
    if future.done():
        return
    if isinstance(end, ConnectionLost):
        future.set_exception(end)
        future.exception()  # an abandoned call is no reason for a warning
    else:
        future.set_result(end)


# One command as RESP bytes; the library types its tuple as if it had one element.
pack = cast("Callable[[tuple[Part, ...]], bytes]", hiredis.pack_command)


def _take_over(owner: Any, protocol: Connection) -> tuple[Any, asyncio.Transport]:
    # The private attributes of the client library that we rely on, all in this function.
    # Its stream closes the socket when it is collected, so it must live as long as we do.
    stream = owner._writer  # noqa: SLF001
    owner._writer = owner._reader = None  # noqa: SLF001
    transport = stream.transport
    transport.set_protocol(protocol)
    return stream, transport


def _close_socket(transport: Any) -> None:
    # A transport of asyncio closes its socket in a callback of its loop, and this loop calls
    # nothing any more: so the callback is called here. Other loops close their sockets as they end.
    tls = getattr(transport, "_ssl_protocol", None)
    plain: Any = transport if tls is None else getattr(tls, "_transport", None)
    if getattr(plain, "_sock", None) is None or not hasattr(plain, "_call_connection_lost"):
        return
    with suppress(RuntimeError):
        transport.abort()
    with suppress(RuntimeError):
        plain._call_connection_lost(None)  # noqa: SLF001


# ── the server's time ─────────────────────────────────────────────────────────────────────────────


class ServerClock:
    """Server milliseconds carried forward by this machine's monotonic clock."""

    def __init__(self) -> None:
        # Until the server has been asked, the local clock is the best guess.
        self._offset_ms = time.time() * 1000 - time.monotonic() * 1000

    async def learn(self, connection: Connection) -> None:
        """Ask the server; half the round trip is taken as the way back."""
        before_s = time.monotonic()
        seconds, micros = await connection.call("TIME")
        after_s = time.monotonic()
        server_ms = int(seconds) * 1000 + int(micros) / 1000
        self._offset_ms = server_ms - (before_s + after_s) * 500

    def now_ms(self) -> float:
        return time.monotonic() * 1000 + self._offset_ms

    def at_ms(self, monotonic_ns: int) -> float:
        """The server's time at a moment of this machine's monotonic clock."""
        return monotonic_ns / 1_000_000 + self._offset_ms
