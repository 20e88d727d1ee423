"""A port that speaks TLS and plain text, for servers that were built without TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Self

# The first byte of every TLS connection; no command begins with it.
_TLS_HANDSHAKE = b"\x16"
_CHUNK_BYTES = 64 * 1024


class TlsFront:
    """Listens in front of a server on loopback; ends TLS where a client begins it."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        self.port = 0
        self.tls_count = 0
        self._server_port = port
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._spawn(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    def _spawn(self, work) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            client, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self._spawn(self._served(client))

    async def _served(self, client: socket.socket) -> None:
        # A server that is gone, or a client that does not trust the certificate.
        with suppress(OSError):
            await self._serve(client)

    async def _serve(self, client: socket.socket) -> None:
        writers: list[asyncio.StreamWriter] = []
        try:
            reader, writer = await self._greeted(client)
            writers.append(writer)
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            writers.append(up_writer)
            ways = [asyncio.ensure_future(_pump(reader, up_writer))]
            ways.append(asyncio.ensure_future(_pump(up_reader, writer)))
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for one in writers:
                one.transport.abort()
            if not writers:
                client.close()

    async def _greeted(self, client: socket.socket):
        loop = asyncio.get_running_loop()
        client.setblocking(False)
        is_readable = loop.create_future()
        loop.add_reader(client, lambda: is_readable.done() or is_readable.set_result(None))
        try:
            await is_readable
        finally:
            loop.remove_reader(client)
        is_tls = client.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
        self.tls_count += is_tls
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        context = self._tls if is_tls else None
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=context)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
