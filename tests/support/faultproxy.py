"""A TCP proxy that misbehaves on demand, to see what is kept while the network does its worst."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_CHUNK_BYTES = 256 * 1024


class FaultProxy:
    """Stands between a client and a server; connect to its `url`.

    It passes everything on until told otherwise, and what it is told holds for the connections
    that are open as well as for those to come. `accept_count` counts dials, `write_count` what
    the client sent in one piece. With `tls` it ends the client's TLS and talks plainly behind.
    """

    def __init__(self, target_url: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = urlsplit(target_url)
        self._tls = tls
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._drops_replies = False
        self._request_bytes_left: int | None = None
        self.latency_s = 0.0
        self.accept_count = 0
        self.write_count = 0
        self.dropped_bytes = 0

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        # What was accepted a moment ago shows itself in the next rounds of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        while self._serving:
            self.cut()
            await asyncio.wait(self._serving, timeout=0.02)

    @property
    def url(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self._port}"

    @property
    def open_count(self) -> int:
        return len(self._pipes)

    def cut(self) -> None:
        """Break every connection at once, as a crash or a firewall does (RST)."""
        for pipe in list(self._pipes):
            pipe.reset()

    def close(self) -> None:
        """End every connection politely (FIN)."""
        for pipe in list(self._pipes):
            pipe.finish()

    def freeze(self) -> None:
        """Pass nothing on, neither way, and say nothing: a half-open connection."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass on what was held back, and all that follows."""
        self._drops_replies = False
        self._flowing.set()

    def drop_replies(self) -> None:
        """Pass requests on and swallow their replies, until `thaw`."""
        self._drops_replies = True

    def cut_after(self, request_bytes: int) -> None:
        """Pass on that many more bytes of requests, then cut, once."""
        self._request_bytes_left = request_bytes

    def refuse(self) -> None:
        """Accept no more connections; the open ones stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Accept connections, on the same port as before."""
        self._listener = await asyncio.start_server(
            self._accepted, "127.0.0.1", self._port, ssl=self._tls
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def request(self, chunk: bytes, pipe: _Pipe) -> bytes:
        """What of a piece from the client goes on to the server."""
        self.write_count += 1
        await self._delay()
        if self._request_bytes_left is None:
            return chunk
        passed = chunk[: self._request_bytes_left]
        self._request_bytes_left -= len(passed)
        if self._request_bytes_left == 0:
            self._request_bytes_left = None
            pipe.is_doomed = True
        return passed

    async def reply(self, chunk: bytes, pipe: _Pipe) -> bytes:
        """What of a piece from the server goes on to the client."""
        await self._delay()
        if not self._drops_replies:
            return chunk
        self.dropped_bytes += len(chunk)
        return b""

    async def _delay(self) -> None:
        await self._flowing.wait()
        if self.latency_s:
            await asyncio.sleep(self.latency_s)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accept_count += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = (reader, writer)
        try:
            server = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        pipe = _Pipe(self, client, server)
        self._pipes.add(pipe)
        await pipe.run()
        self._pipes.discard(pipe)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(self._target.path)
        return await asyncio.open_connection(self._target.hostname, self._target.port)


class LosesOneReply(FaultProxy):
    """Passes one request on and cuts its connection instead of answering."""

    lost: bytes | None = None

    async def request(self, chunk, pipe):
        if self.lost is not None and self.lost in chunk:
            self.lost, pipe.is_unanswered = None, True
        return await super().request(chunk, pipe)

    async def reply(self, chunk, pipe):
        if not hasattr(pipe, "is_unanswered"):
            return await super().reply(chunk, pipe)
        pipe.is_doomed = True
        return b""


class _Pipe:
    """One connection of a client and the one behind it."""

    def __init__(self, proxy: FaultProxy, client: tuple, server: tuple) -> None:
        self._client_reader, self._client = client
        self._server_reader, self._server = server
        self._socket = self._client.get_extra_info("socket")
        self._ways = [
            asyncio.create_task(self._pump(self._client_reader, self._server, proxy.request)),
            asyncio.create_task(self._pump(self._server_reader, self._client, proxy.reply)),
        ]
        self.is_doomed = False

    async def run(self) -> None:
        await asyncio.wait(self._ways, return_when=asyncio.FIRST_COMPLETED)
        self.finish()
        await asyncio.gather(*self._ways, return_exceptions=True)
        for writer in (self._client, self._server):
            with suppress(OSError):
                await writer.wait_closed()

    def reset(self) -> None:
        with suppress(OSError):
            # Closing with nothing to linger for sends a reset instead of an end.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.transport.abort()
        self.finish()

    def finish(self) -> None:
        self._client.close()
        self._server.close()
        for way in self._ways:
            way.cancel()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, judge) -> None:
        with suppress(OSError):
            while chunk := await source.read(_CHUNK_BYTES):
                sink.write(await judge(chunk, self))
                await sink.drain()
                if self.is_doomed:
                    self.reset()
                    return
