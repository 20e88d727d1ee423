"""Looks at a queue and moves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from chasquimq.errors import ServerRefused, StoreError
from chasquimq.store.connection import Connection, Reply, pack
from chasquimq.wire.keys import QueueKeys

if TYPE_CHECKING:
    from chasquimq.store.link import Link


class Counts(msgspec.Struct, frozen=True):
    """How many jobs are where.

    `ready` wait in the stream, `running` are held by workers, `delayed` wait for their time
    (retries too), `dead` lie in the DLQ.
    """

    ready: int = 0
    running: int = 0
    delayed: int = 0
    dead: int = 0
    repeatable: int = 0

    @property
    def backlog(self) -> int:
        """What still has to be done, now or later."""
        return self.ready + self.running + self.delayed


class InspectorStore:
    """Counts and peeks of one queue, over somebody's link."""

    def __init__(self, queue: str, link: Link, group: str = "default") -> None:
        self._keys = QueueKeys(queue)
        self._link = link
        self._group = group

    async def counts(self) -> Counts:
        """All depths in one round trip."""
        keys = self._keys
        replies = await self._link.ask(
            pack(("XLEN", keys.stream))
            + pack(("XPENDING", keys.stream, self._group))
            + pack(("ZCARD", keys.delayed))
            + pack(("XLEN", keys.dlq))
            + pack(("ZCARD", keys.repeat)),
            5,
        )
        length, pending, delayed, dead, repeatable = map(_number, replies)
        return Counts(max(0, length - pending), pending, delayed, dead, repeatable)

    async def delayed_due_within(self, ms: int) -> int:
        """How many delayed jobs fall due within that time, by the server's clock."""
        connection = await self._link.connection()
        now_ms = await server_ms(connection)
        return await self._link.call("ZCOUNT", self._keys.delayed, "-inf", now_ms + ms)


async def server_ms(connection: Connection) -> int:
    """The server's time of day."""
    seconds, micros = await connection.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def _number(reply: Reply) -> int:
    if isinstance(reply, ServerRefused) and reply.code == "NOGROUP":
        return 0
    if isinstance(reply, StoreError):
        raise reply
    if isinstance(reply, int):
        return reply
    # XPENDING's summary begins with the count.
    return cast("int", reply[0])
