"""A small HTTP endpoint for scrapers and probes: /metrics, /healthz, /readyz, and nothing else."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self

from chasquimq.errors import SettingsError
from chasquimq.model.pace import Pace

logger = logging.getLogger(__name__)
REQUEST_BYTES_MAX = 8_192
REQUEST_S_MAX = 5.0
CONNECTIONS_MAX = 32
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"
_METHODS = ("GET", "HEAD")
Page = Callable[[], bytes] | Callable[[], Awaitable[bytes]]


class Answer(NamedTuple):
    """What goes back to the caller."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT_TYPE


class MetricsServer:
    """Serves until it is stopped; reachable from this machine only, unless `host` says otherwise.

    `metrics` draws the page and may take its time: a coroutine function runs on this loop, any
    other in a thread. `is_healthy` False asks for a restart of the process, `is_ready` False says
    that it consumes nothing now.
    """

    def __init__(
        self,
        metrics: Page,
        *,
        is_healthy: Callable[[], bool],
        is_ready: Callable[[], bool],
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise SettingsError("port", port, "from 0 (any free one) to 65535")
        self._metrics = metrics
        self._probes = {"/healthz": is_healthy, "/readyz": is_ready}
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._pace = Pace()

    @property
    def port(self) -> int:
        """The port that is listened on; the one asked for while it is not."""
        if self._server is None or not self._server.sockets:
            return self._port
        return self._server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is taken or not ours.
        """
        assert self._server is None, "a server is started once"
        self._server = await asyncio.start_server(
            self._accept, self._host, self._port, limit=REQUEST_BYTES_MAX
        )

    async def stop(self) -> None:
        """Listen no more and drop who is still talking; may be called twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._talks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        talk = asyncio.get_running_loop().create_task(
            self._talk(reader, writer), name="chasqui-metrics"
        )
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer; a caller that is slow or gone gets none."""
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_S_MAX):
                    method, path = await _read_request(reader)
                answer = await self._answer(method, path)
                writer.write(_spell(answer, has_body=method != "HEAD"))
                async with asyncio.timeout(REQUEST_S_MAX):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _answer(self, method: str, path: str) -> Answer:
        try:
            return await self._route(method, path)
        except Exception:  # a page of somebody else's numbers may raise anything
            if self._pace.allows():
                logger.exception("a page could not be drawn", extra={"path": path})
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _route(self, method: str, path: str) -> Answer:
        if not method:
            return _plain(HTTPStatus.BAD_REQUEST)
        if path == "/metrics" or path in self._probes:
            if method not in _METHODS:
                return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
            return await self._page(path)
        return _plain(HTTPStatus.NOT_FOUND)

    async def _page(self, path: str) -> Answer:
        if path == "/metrics":
            return Answer(HTTPStatus.OK, await _drawn(self._metrics), METRICS_TYPE)
        if self._probes[path]():
            return Answer(HTTPStatus.OK, b"ok\n")
        return _plain(HTTPStatus.SERVICE_UNAVAILABLE)


async def _drawn(page: Page) -> bytes:
    if inspect.iscoroutinefunction(page):
        return await page()
    drawn = await asyncio.to_thread(page)
    assert isinstance(drawn, bytes), "a page that is drawn in a thread is there at once"
    return drawn


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Method and path of a request; both empty where it is none, or too long."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return "", ""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


def _plain(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase.lower()}\n".encode())


def _spell(answer: Answer, *, has_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (answer.body if has_body else b"")
