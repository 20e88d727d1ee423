"""Reads events streams: nothing between two reads is missed, and a broken connection resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from chasquimq.errors import ConnectionLost, ServerRefused, StoreError
from chasquimq.store.net.connection import pack
from chasquimq.store.net.errors import Action, action_for
from chasquimq.store.net.per_loop import PerLoop
from chasquimq.store.net.reconnect import ReconnectingConnection
from chasquimq.store.net.route import Route
from chasquimq.wire.events import ended_job_id
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import first_values, read_text

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.net.connection import Reply

_NEWEST = "$"
_PAUSE_S = 0.2
Answer = TypeVar("Answer")
# Queue, entry id, and the fields with their values one behind the other.
RawRow = tuple[str, str, list[bytes]]


class EventEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of an events stream, as text."""

    queue: str
    entry_id: str
    fields: dict[str, str]


class EventReader:
    """Reads the events of some queues from a place on."""

    def __init__(
        self,
        queues: Sequence[str],
        connection: ConnectionSettings,
        *,
        after_id: str,
        block_ms: int,
        count: int,
        name: str = "chasqui-events",
    ) -> None:
        self._queues = {QueueKeys(queue).events: queue for queue in queues}
        self._after = dict.fromkeys(self._queues, after_id)
        self._block_ms = block_ms
        self._count = count
        self._connections = PerLoop(lambda: ReconnectingConnection(connection, name=name))

    @property
    def last_ids(self) -> dict[str, str]:
        """Where a later reader would go on, for each queue."""
        return {queue: self._after[key] for key, queue in self._queues.items()}

    @property
    def is_settled(self) -> bool:
        """Whether it knows its place, so that nothing from here on is missed."""
        return _NEWEST not in self._after.values()

    async def read(self) -> list[EventEntry]:
        """The next entries; an empty list when none came while blocking, or after an error."""
        return [_entry(*row) for row in await self.read_rows()]

    async def read_rows(self) -> list[RawRow]:
        """The same, as they are."""
        await self.settle()
        if not self.is_settled:
            return []
        reply = await self._healing(self._read())
        return list(self._rows(reply))

    async def settle(self) -> None:
        """Turn `$` into the id it means now, once: sent again it would skip what came between."""
        await self._healing(self._settle_newest())

    def skip(self) -> None:
        """Leave out all that is there by now; the next read settles again."""
        self._after = dict.fromkeys(self._after, _NEWEST)

    async def close(self) -> None:
        await self._connections.close()

    @property
    def _connection(self) -> ReconnectingConnection:
        """That of the running loop: the next `asyncio.run` goes on where the last one ended."""
        return self._connections.here()

    async def _healing(self, step: Awaitable[Answer]) -> Answer | None:
        """The answer to a step; None after an error that may pass."""
        try:
            return await step
        except StoreError as error:
            self._connection.on_error(error)
            if not self._may_heal(error):
                raise
            await asyncio.sleep(_PAUSE_S)
            return None

    async def _settle_newest(self) -> None:
        newest = [key for key, after in self._after.items() if after == _NEWEST]
        if not newest:
            return
        request = b"".join([pack(("XREVRANGE", key, "+", "-", "COUNT", 1)) for key in newest])
        for key, reply in zip(
            newest, await self._connection.ask(request, len(newest)), strict=True
        ):
            if isinstance(reply, StoreError):
                raise reply
            self._after[key] = reply[0][0].decode() if reply else "0-0"

    async def _read(self) -> Reply:
        keys, ids = list(self._after), list(self._after.values())
        return await self._connection.call(
            "XREAD", "COUNT", self._count, "BLOCK", self._block_ms, "STREAMS", *keys, *ids,
            block_ms=self._block_ms,
        )  # fmt: skip

    def _may_heal(self, error: StoreError) -> bool:
        """A caller that iterates waits for as long as an outage takes, once a server was reached."""
        if isinstance(error, ConnectionLost):
            is_waited_for = self._connection.was_open and not self._connection.is_closed
            return error.outcome == "unknown" or is_waited_for
        return not (isinstance(error, ServerRefused) and action_for(error) is Action.RAISE)

    def _rows(self, reply: Reply) -> Iterator[RawRow]:
        for key, rows in reply or ():
            key_text = key.decode()
            for entry_id, fields in rows:
                self._after[key_text] = entry_id.decode()
                yield self._queues[key_text], entry_id.decode(), fields


def _entry(queue: str, entry_id: str, fields: list[bytes]) -> EventEntry:
    found = first_values(fields)
    text = {read_text(name): read_text(value) for name, value in found.items()}
    return EventEntry(queue, entry_id, text)


def open_event_reader(
    queues: Sequence[str],
    connection: ConnectionSettings,
    *,
    after_id: str,
    block_ms: int,
    count: int,
) -> EventReader | CombinedEventReader:
    """A reader of these queues; nothing is dialled before the first read."""

    def reader(some: Sequence[str]) -> EventReader:
        settings = replace(connection, queue=some[0])
        return EventReader(some, settings, after_id=after_id, block_ms=block_ms, count=count)

    if len(queues) == 1 or not Route(connection).is_cluster:
        return reader(queues)
    return CombinedEventReader([reader([queue]) for queue in dict.fromkeys(queues)])


class CombinedEventReader:
    """One reader a queue, all read at once; what one of them brings does not wait for the others."""

    def __init__(self, readers: Sequence[EventReader]) -> None:
        self._readers = readers
        self._reading: dict[EventReader, asyncio.Task[list[EventEntry]]] = {}

    @property
    def last_ids(self) -> dict[str, str]:
        """Where a later reader would go on, for each queue."""
        return {
            queue: after for reader in self._readers for queue, after in reader.last_ids.items()
        }

    async def read(self) -> list[EventEntry]:
        """The next entries of any queue; an empty list when none came while blocking."""
        self._drop_foreign()
        for reader in self._readers:
            if reader not in self._reading:
                self._reading[reader] = asyncio.create_task(
                    reader.read(), name="chasqui-read-events"
                )
        # A reader that gives up leaves the reads under way: what they bring comes next time.
        await asyncio.wait(self._reading.values(), return_when=asyncio.FIRST_COMPLETED)
        done = [reader for reader, task in self._reading.items() if task.done()]
        entries = [one for reader in done if self._brought(reader) for one in self._take(reader)]
        if not entries:
            for reader in done:
                self._reading.pop(reader).result()
        return entries

    def _drop_foreign(self) -> None:
        """Leave reads to the loop that began them; they moved nothing on."""
        loop = asyncio.get_running_loop()
        self._reading = {
            reader: task for reader, task in self._reading.items() if task.get_loop() is loop
        }

    def _brought(self, reader: EventReader) -> bool:
        task = self._reading[reader]
        return not task.cancelled() and task.exception() is None and bool(task.result())

    def _take(self, reader: EventReader) -> list[EventEntry]:
        return self._reading.pop(reader).result()

    async def close(self) -> None:
        for reader in self._readers:
            await reader.close()
        reading = list(self._reading.values())
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


_BLOCK_MS = 5_000
_PAGE_MAX = 500
# Events that come one by one are read a few at a time.
_GATHER_S = 0.005
# Where more happens than a page holds, all of it would cost more than asking for the ends.
_BUSY_PAUSE_S = 0.1


class EndReader(EventReader):
    """Follows the events of one queue from the moment it is settled."""

    def __init__(self, queue: str, connection: ConnectionSettings) -> None:
        super().__init__(
            [queue], connection, after_id="$", block_ms=_BLOCK_MS, count=_PAGE_MAX,
            name="chasqui-results",
        )  # fmt: skip
        self._pause_s = 0.0

    async def read_ended(self) -> list[str]:
        """Ids of jobs that have ended; a stream too busy to follow is left out in part."""
        await asyncio.sleep(self._pause_s)
        rows = await self.read_rows()
        self._pause_s = _GATHER_S if rows else 0.0
        if len(rows) == _PAGE_MAX:
            self.skip()
            self._pause_s = _BUSY_PAUSE_S
        return [ended for _, _, fields in rows if (ended := ended_job_id(fields))]
