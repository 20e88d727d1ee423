"""Counts what clients ask of a server, without what scripts do inside of it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_CALL = re.compile(rb'^\+[\d.]+ \[\d+ (?P<who>[^\]]*)\] "(?P<name>[^"]*)"')


class Monitor:
    """Hears every call while it is open."""

    def __init__(self, url: str) -> None:
        self._path = urlsplit(url).path
        self.calls: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_unix_connection(self._path)
        self._writer.write(b"MONITOR\r\n")
        assert await reader.readline() == b"+OK\r\n"
        self._listening = asyncio.create_task(self._listen(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            call = _CALL.match(line)
            if call and call["who"] != b"lua":
                self.calls[call["name"].decode().upper()] += 1
