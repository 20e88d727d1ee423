"""A plain client for looking at what is really on the server."""

from __future__ import annotations

from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.connect import open_connection
from chasquimq.store.net.connection import Connection
from chasquimq.wire.keys import QueueKeys


class Raw:
    """Commands and keys of one queue, without any of our own logic."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self.connection = connection
        self.keys = QueueKeys(queue)

    @classmethod
    async def open(cls, url: str, queue: str) -> Raw:
        return cls(await open_connection(ConnectionSettings(url=url)), queue)

    async def __call__(self, *parts):
        return await self.connection.call(*parts)

    async def entries(self, key: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
        rows = await self.connection.call("XRANGE", key, "-", "+")
        return [(row[0], dict(zip(row[1][::2], row[1][1::2], strict=True))) for row in rows]

    async def dlq(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.entries(self.keys.dlq)]

    async def pending(self, group: str = "default") -> list[list]:
        return await self.connection.call("XPENDING", self.keys.stream, group, "-", "+", 10_000)

    async def consumers(self, group: str = "default") -> list[str]:
        rows = await self.connection.call("XINFO", "CONSUMERS", self.keys.stream, group)
        return [dict(zip(row[::2], row[1::2], strict=True))[b"name"].decode() for row in rows]

    async def close(self) -> None:
        await self.connection.close()
