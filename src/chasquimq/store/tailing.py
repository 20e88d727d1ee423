"""Follows events streams: nothing between two reads is missed, and a broken connection resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from chasquimq.errors import ConnectionLost, ServerRefused, StoreError
from chasquimq.store.connection import pack
from chasquimq.store.link import Link
from chasquimq.store.per_loop import PerLoop
from chasquimq.store.server_errors import Action, action_for
from chasquimq.wire.keys import QueueKeys
from chasquimq.wire.stream_entry import first_values, read_text

if TYPE_CHECKING:
    from chasquimq.settings import ConnectionSettings
    from chasquimq.store.connection import Reply

_NEWEST = "$"
_PAUSE_S = 0.2
Answer = TypeVar("Answer")
# Queue, entry id, and the fields with their values one behind the other.
RawRow = tuple[str, str, list[bytes]]


class TailedEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of an events stream, as text."""

    queue: str
    entry_id: str
    fields: dict[str, str]


class EventTail:
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
        self._links = PerLoop(lambda: Link(connection, name=name))

    @property
    def last_ids(self) -> dict[str, str]:
        """Where a later tail would go on, for each queue."""
        return {queue: self._after[key] for key, queue in self._queues.items()}

    @property
    def is_settled(self) -> bool:
        """Whether it knows its place, so that nothing from here on is missed."""
        return _NEWEST not in self._after.values()

    async def read(self) -> list[TailedEntry]:
        """The next entries; an empty list when none came while blocking, or after trouble."""
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
        """Leave out all that is there by now; the next read settles anew."""
        self._after = dict.fromkeys(self._after, _NEWEST)

    async def close(self) -> None:
        await self._links.close()

    @property
    def _link(self) -> Link:
        """That of the running loop: the next `asyncio.run` goes on where the last one ended."""
        return self._links.here()

    async def _healing(self, step: Awaitable[Answer]) -> Answer | None:
        """The answer to a step; None after trouble that may pass."""
        try:
            return await step
        except StoreError as error:
            self._link.heed(error)
            if not self._may_heal(error):
                raise
            await asyncio.sleep(_PAUSE_S)
            return None

    async def _settle_newest(self) -> None:
        newest = [key for key, after in self._after.items() if after == _NEWEST]
        if not newest:
            return
        request = b"".join([pack(("XREVRANGE", key, "+", "-", "COUNT", 1)) for key in newest])
        for key, reply in zip(newest, await self._link.ask(request, len(newest)), strict=True):
            if isinstance(reply, StoreError):
                raise reply
            self._after[key] = reply[0][0].decode() if reply else "0-0"

    async def _read(self) -> Reply:
        keys, ids = list(self._after), list(self._after.values())
        return await self._link.call(
            "XREAD", "COUNT", self._count, "BLOCK", self._block_ms, "STREAMS", *keys, *ids,
            block_ms=self._block_ms,
        )  # fmt: skip

    def _may_heal(self, error: StoreError) -> bool:
        """Whoever iterates waits for as long as an outage takes, once a server was reached."""
        if isinstance(error, ConnectionLost):
            is_waited_for = self._link.was_open and not self._link.is_closed
            return error.outcome == "unknown" or is_waited_for
        return not (isinstance(error, ServerRefused) and action_for(error) is Action.RAISE)

    def _rows(self, reply: Reply) -> Iterator[RawRow]:
        for key, rows in reply or ():
            key_text = key.decode()
            for entry_id, fields in rows:
                self._after[key_text] = entry_id.decode()
                yield self._queues[key_text], entry_id.decode(), fields


def _entry(queue: str, entry_id: str, fields: list[bytes]) -> TailedEntry:
    found = first_values(fields)
    text = {read_text(name): read_text(value) for name, value in found.items()}
    return TailedEntry(queue, entry_id, text)
