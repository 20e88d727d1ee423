"""A TCP proxy that misbehaves on demand, to see what is kept while the network does its worst."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_CHUNK_BYTES = 256 * 1024
# What a new connection meets.
_WELCOME, _SLAM, _SILENCE = "welcome", "slam", "silence"


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
        self._mute: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._drops_replies = False
        self._request_bytes_left: int | None = None
        self._greeting = _WELCOME
        self._dice = random.Random(0)
        self._lost_share = 0.0
        self._losable: tuple[bytes, ...] = ()
        # Each way may be slow by itself; `latency_s` holds for both.
        self.latency_s = 0.0
        self.request_latency_s = 0.0
        self.reply_latency_s = 0.0
        self.jitter_s = 0.0
        # None: as fast as it goes.
        self.bytes_per_s: float | None = None
        # 0: pieces stay as they came.
        self.slice_bytes = 0
        self.lost_count = 0
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

    def lead_to(self, target_url: str) -> None:
        """Let every connection from now on end at another server."""
        self._target = urlsplit(target_url)

    def cut(self) -> None:
        """Break every connection at once, as a crash or a firewall does (RST)."""
        for pipe in list(self._pipes):
            pipe.reset()
        for writer in list(self._mute):
            _reset(writer, writer.get_extra_info("socket"))

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

    def lose_replies(self, share: float, commands: Sequence[bytes], *, seed: int = 0) -> None:
        """Of these commands, pass that share on and cut instead of answering; 0 ends it."""
        self._dice, self._lost_share, self._losable = random.Random(seed), share, tuple(commands)

    def slam(self) -> None:
        """Accept and cut at once, so that every dial fails and is counted."""
        self._greeting = _SLAM
        self.cut()

    def blackhole(self) -> None:
        """Accept, and never say a word."""
        self._greeting = _SILENCE

    def welcome(self) -> None:
        """Serve connections that are accepted from now on."""
        self._greeting = _WELCOME

    def calm(self) -> None:
        """Misbehave no more."""
        self.welcome()
        self.thaw()
        self.lose_replies(0.0, ())
        self.latency_s = self.request_latency_s = self.reply_latency_s = self.jitter_s = 0.0
        self.bytes_per_s, self.slice_bytes, self._request_bytes_left = None, 0, None

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
        await self._delay(self.request_latency_s, len(chunk))
        if self._is_unlucky(chunk):
            self.lost_count += 1
            pipe.is_unanswered = True
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
        await self._delay(self.reply_latency_s, len(chunk))
        if pipe.is_unanswered:
            pipe.is_doomed = True
            return b""
        if not self._drops_replies:
            return chunk
        self.dropped_bytes += len(chunk)
        return b""

    def slices(self, chunk: bytes) -> Iterator[bytes]:
        """The pieces in which a chunk is passed on."""
        size = self.slice_bytes or len(chunk) or 1
        for at in range(0, len(chunk), size):
            yield chunk[at : at + size]

    def _is_unlucky(self, chunk: bytes) -> bool:
        if not self._lost_share or not any(command in chunk for command in self._losable):
            return False
        return self._dice.random() < self._lost_share

    async def _delay(self, latency_s: float, size_bytes: int) -> None:
        await self._flowing.wait()
        wait_s = self.latency_s + latency_s + self._dice.uniform(0, self.jitter_s)
        if self.bytes_per_s is not None:
            wait_s += size_bytes / self.bytes_per_s
        if wait_s:
            await asyncio.sleep(wait_s)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accept_count += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = (reader, writer)
        if self._greeting is not _WELCOME:
            await self._turn_away(reader, writer)
            return
        try:
            server = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        pipe = _Pipe(self, client, server)
        self._pipes.add(pipe)
        await pipe.run()
        self._pipes.discard(pipe)

    async def _turn_away(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._greeting is _SILENCE:
            self._mute.add(writer)
            with suppress(OSError):
                while await reader.read(_CHUNK_BYTES):
                    pass
            self._mute.discard(writer)
        _reset(writer, writer.get_extra_info("socket"))

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


class _Pipe:
    """One connection of a client and the one behind it."""

    def __init__(self, proxy: FaultProxy, client: tuple, server: tuple) -> None:
        self._client_reader, self._client = client
        self._server_reader, self._server = server
        # Asked for while the connection is up: later, TLS does not know it any more.
        self._socket = self._client.get_extra_info("socket")
        self._ways = [
            asyncio.create_task(self._pump(self._client_reader, self._server, proxy.request)),
            asyncio.create_task(self._pump(self._server_reader, self._client, proxy.reply)),
        ]
        self.is_doomed = False
        self.is_unanswered = False
        self._slices = proxy.slices

    async def run(self) -> None:
        await asyncio.wait(self._ways, return_when=asyncio.FIRST_COMPLETED)
        self.finish()
        await asyncio.gather(*self._ways, return_exceptions=True)
        for writer in (self._client, self._server):
            with suppress(OSError):
                await writer.wait_closed()

    def reset(self) -> None:
        _reset(self._client, self._socket)
        self.finish()

    def finish(self) -> None:
        self._client.close()
        self._server.close()
        for way in self._ways:
            way.cancel()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, judge) -> None:
        with suppress(OSError):
            while chunk := await source.read(_CHUNK_BYTES):
                for piece in self._slices(await judge(chunk, self)):
                    sink.write(piece)
                    await sink.drain()
                if self.is_doomed:
                    self.reset()
                    return


def _reset(writer: asyncio.StreamWriter, line: socket.socket | None) -> None:
    with suppress(OSError, AttributeError):
        # Closing with nothing to linger for sends a reset instead of an end.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
