"""A client with nothing to it: replies are counted and handed over, nobody waits for any."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import hiredis

from chasquimq.errors import StoreError
from chasquimq.settings import ConnectionSettings
from chasquimq.store.address import new_async_connection
from chasquimq.store.connection import Connection, Reply

if TYPE_CHECKING:
    from benchmarks.scenario import Plan
    from benchmarks.tape import Tape

OnReplies = Callable[[list[Reply]], None]


class BareConnection(Connection):
    """Answers like any other until somebody listens to all that comes."""

    _on_replies: OnReplies | None = None

    def listen(self, on_replies: OnReplies, on_refusal: Callable[[str], Exception]) -> None:
        self._on_replies = on_replies
        self._reader = hiredis.Reader(replyError=on_refusal)

    def write(self, request: bytes) -> None:
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._on_replies is None:
            super().data_received(data)
            return
        reader, replies = self._reader, list[Reply]()
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            replies.append(reply)
        self._on_replies(replies)


async def open_as_recorded(plan: Plan, tape: Tape) -> list[BareConnection]:
    """As many connections as ours had, prepared as ours were."""
    connections: list[BareConnection] = []
    settings = ConnectionSettings(url=plan.url)
    for _ in range(tape.connection_count):
        owner = new_async_connection(settings)
        await owner.connect()
        connections.append(BareConnection(owner, settings.command_timeout_ms))
    for frame in tape.setup:
        await connections[frame.connection].send(frame.request, frame.reply_count)
    return connections


class End:
    """Comes when everything is answered, or with the first refusal."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        await self._future

    def reached(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def refused(self, text: str) -> Exception:
        error = StoreError(f"the server must take what it took before, it says: {text}")
        if not self._future.done():
            self._future.set_exception(error)
        return error


class Lane:
    """The writes of one connection, with no more of them unanswered than ours had."""

    def __init__(self, connection: BareConnection, in_flight_max: int) -> None:
        self._connection = connection
        self._in_flight_max = in_flight_max
        self._due: deque[int] = deque()
        self._reply_count = 0

    @property
    def has_room(self) -> bool:
        return len(self._due) < self._in_flight_max

    @property
    def is_idle(self) -> bool:
        return not self._due

    def listen(self, on_replies: OnReplies, end: End) -> None:
        def answered(replies: list[Reply]) -> None:
            self._reply_count += len(replies)
            while self._due and self._reply_count >= self._due[0]:
                self._reply_count -= self._due.popleft()
            on_replies(replies)

        self._connection.listen(answered, end.refused)

    def write(self, request: bytes, reply_count: int) -> None:
        self._due.append(reply_count)
        self._connection.write(request)
