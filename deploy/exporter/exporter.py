"""Serves over HTTP what else stays inside: the depths of queues, or the page of a worker."""
# ruff: noqa: INP001  a program, not a package

from __future__ import annotations

import asyncio
import http.client
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import click

from chasquimq.telemetry.http import MetricsServer

LOOPBACK = "127.0.0.1"
# Below the ten seconds that a scrape waits.
DRAW_S_MAX = 8.0
# Two scrapers at once cost one look at the server.
FRESH_S = 5.0
LOOK_S = 2.0

logger = logging.getLogger("chasqui-exporter")
Draw = Callable[[], bytes]

host_option = click.option("--host", default=LOOPBACK, show_default=True, help="Where to listen.")
port_option = click.option("--port", type=click.IntRange(0, 65_535), required=True)


@click.group()
def exporter() -> None:
    """Show depths or a worker's page to a Prometheus on another machine."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


@exporter.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--group", default="default", show_default=True, help="Whose jobs are held.")
@host_option
@port_option
def depths(queues: tuple[str, ...], group: str, host: str, port: int) -> None:
    """Serve what `chasqui metrics` prints about QUEUEs, fresh for each scrape.

    Without names every key of the server is looked at each time: name them on a large server.
    """
    page = SharedPage(lambda: _depths_page(queues, group))
    _run(_serve(page.draw, host, port))


@exporter.command()
@click.option("--from-port", type=click.IntRange(1, 65_535), required=True, help="The worker's.")
@click.option(
    "--leave-after",
    "silent_s_max",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End with 1 when no worker has listened for so long.  [default: stay]",
)
@host_option
@port_option
def relay(from_port: int, silent_s_max: float | None, host: str, port: int) -> None:
    """Serve the page of a worker that listens on this machine's loopback only."""
    watch = None if silent_s_max is None else _until_silent(from_port, silent_s_max)
    _run(_serve(lambda: _worker_page(from_port), host, port, watch))


class SharedPage:
    """A page that is drawn by one caller at a time and shown to all who ask meanwhile."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._lock = threading.Lock()
        self._page = b""
        self._drawn_s = float("-inf")

    def draw(self) -> bytes:
        with self._lock:
            if time.monotonic() - self._drawn_s > FRESH_S:
                self._page = self._draw()
                self._drawn_s = time.monotonic()
            return self._page


def _depths_page(queues: tuple[str, ...], group: str) -> bytes:
    command = [sys.executable, "-m", "chasquimq", "metrics", *queues, "--group", group]
    said = subprocess.run(command, capture_output=True, timeout=DRAW_S_MAX, check=False)
    complaint = said.stderr.decode(errors="replace").strip()
    # A broken queue is named and left out; the others are worth showing.
    if said.returncode and not _has_samples(said.stdout):
        raise RuntimeError(complaint or f"chasqui metrics ended with {said.returncode}")
    if complaint:
        logger.warning("%s", complaint)
    return said.stdout


def _has_samples(page: bytes) -> bool:
    return any(line and not line.startswith(b"#") for line in page.splitlines())


def _worker_page(port: int) -> bytes:
    # Not urllib: a proxy named in the environment has no business on loopback.
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=DRAW_S_MAX)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        page = answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise RuntimeError(f"the worker's page must answer 200, got {answer.status}")
    return page


def _run(serving: Coroutine[Any, Any, int]) -> None:
    try:
        sys.exit(asyncio.run(serving))
    except OSError as error:
        raise click.ClickException(f"--port must be free to listen on: {error}") from error


async def _serve(
    draw: Draw, host: str, port: int, watch: Coroutine[Any, Any, None] | None = None
) -> int:
    """Serve until a signal (0), or until the watch returns (1)."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = MetricsServer(
        draw, is_healthy=lambda: True, is_ready=lambda: True, host=host, port=port
    )
    async with server:
        logger.info("serving /metrics on port %d", server.port)
        ends = [asyncio.ensure_future(end) for end in (stopped.wait(), watch) if end is not None]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    return 0 if stopped.is_set() else 1


async def _until_silent(port: int, silent_s_max: float) -> None:
    heard_s = time.monotonic()
    while time.monotonic() - heard_s < silent_s_max:
        if await _is_listened_on(port):
            heard_s = time.monotonic()
        await asyncio.sleep(min(LOOK_S, silent_s_max / 4))
    logger.error("no worker has listened on port %d for %g s, leaving", port, silent_s_max)


async def _is_listened_on(port: int) -> bool:
    try:
        async with asyncio.timeout(LOOK_S):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


if __name__ == "__main__":
    exporter()
