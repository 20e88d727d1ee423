"""Serves /metrics, /healthz and /readyz over HTTP to scrapers and probes, and nothing else."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import NamedTuple, Self

from chasquimq.errors import SettingsError
from chasquimq.model.log import LogThrottle, get_logger

logger = get_logger(__name__)
REQUEST_BYTES_MAX = 8_192
# For a whole request: a caller that sends it byte by byte is dropped like a silent one.
REQUEST_S_MAX = 2.0
ANSWER_S_MAX = 5.0
CONNECTIONS_MAX = 64
PROBLEM_CHARS_MAX = 1_000
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"
_METHODS = ("GET", "HEAD")
Page = Callable[[], bytes] | Callable[[], Awaitable[bytes]]


class HttpResponse(NamedTuple):
    """What goes back to the caller."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT_TYPE


class Caller:
    """A connection, and whether we wait for the other side: for its request, or for it to read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        address: tuple[str, ...] | None = writer.get_extra_info("peername")
        self.host = address[0] if address else ""
        self.is_awaited = True
        self.task: asyncio.Task[None] | None = None

    def drop(self) -> None:
        """Close the connection; a task that has not begun would not do so itself."""
        if self.task is not None:
            self.task.cancel()
        self.writer.transport.abort()


class MetricsServer:
    """Serves until it is stopped; only this machine can reach it unless `host` says otherwise.

    `metrics` draws the page and may take its time: a coroutine function runs on this loop, any
    other in a thread. `is_healthy` False asks for a restart of the process, `is_ready` False says
    that it cannot work at the moment, and `problems` says why, on the page of the status 503.

    A caller that is slow with its request is dropped. At the limit of connections the oldest waiting
    one is dropped. So a probe is answered however many callers stay silent.
    """

    def __init__(
        self,
        metrics: Page,
        *,
        is_healthy: Callable[[], bool],
        is_ready: Callable[[], bool],
        problems: Callable[[], Sequence[str]] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise SettingsError("port", port, "from 0 (any free one) to 65535")
        self._metrics = metrics
        self._probes = {"/healthz": is_healthy, "/readyz": is_ready}
        self._problems = {} if problems is None else {"/readyz": problems}
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        # In the order in which they called.
        self._callers: dict[Caller, None] = {}
        self._throttle = LogThrottle()

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
        """Stop listening and drop open connections; may be called twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        callers = list(self._callers)
        for caller in callers:
            caller.drop()
        await asyncio.gather(*filter(None, (one.task for one in callers)), return_exceptions=True)
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
        if len(self._callers) >= CONNECTIONS_MAX:
            self._make_room()
        caller = Caller(reader, writer)
        self._callers[caller] = None
        caller.task = asyncio.get_running_loop().create_task(
            self._serve(caller), name="chasqui-metrics"
        )
        caller.task.add_done_callback(lambda _: self._callers.pop(caller, None))

    def _make_room(self) -> None:
        """Drop the oldest waiting caller of the host that has the most of them.

        A newcomer is never refused: it may be the probe that decides over this process.
        """
        hosts = Counter(caller.host for caller in self._callers)
        # The first one of those that are equal is the oldest.
        victim = max(self._callers, key=lambda caller: (caller.is_awaited, hosts[caller.host]))
        del self._callers[victim]
        victim.drop()

    async def _serve(self, caller: Caller) -> None:
        """One request, one answer; a caller that is slow or gone gets none."""
        writer = caller.writer
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_S_MAX):
                    method, path = await _read_request(caller.reader)
                caller.is_awaited = False
                answer = await self._answer(method, path)
                caller.is_awaited = True
                writer.write(_encode_answer(answer, has_body=method != "HEAD"))
                async with asyncio.timeout(ANSWER_S_MAX):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()

    async def _answer(self, method: str, path: str) -> HttpResponse:
        try:
            return await self._route(method, path)
        except Exception:  # a page function of the user may raise anything
            if self._throttle.allows():
                logger.exception("the page %s could not be made", path, extra={"path": path})
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _route(self, method: str, path: str) -> HttpResponse:
        if not method:
            return _plain(HTTPStatus.BAD_REQUEST)
        if path == "/metrics" or path in self._probes:
            if method not in _METHODS:
                return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
            return await self._page(path)
        return _plain(HTTPStatus.NOT_FOUND)

    async def _page(self, path: str) -> HttpResponse:
        if path == "/metrics":
            return HttpResponse(HTTPStatus.OK, await _drawn(self._metrics), METRICS_TYPE)
        if self._probes[path]():
            return HttpResponse(HTTPStatus.OK, b"ok\n")
        found = self._problems[path]() if path in self._problems else ()
        return _plain(HTTPStatus.SERVICE_UNAVAILABLE, *map(_one_line, found))


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


def _plain(status: HTTPStatus, *lines: str) -> HttpResponse:
    return HttpResponse(
        status, "".join(f"{line}\n" for line in (status.phrase.lower(), *lines)).encode()
    )


def _one_line(sentence: str) -> str:
    """The sentence without line ends and control characters, which texts of errors may hold."""
    shown = (
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in sentence
    )
    return "".join(shown)[:PROBLEM_CHARS_MAX]


def _encode_answer(answer: HttpResponse, *, has_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (answer.body if has_body else b"")
