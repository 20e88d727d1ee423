"""`chasqui upkeep`: promotion and firing for queues where no worker runs."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click

from chasquimq.server.finder import find_or_start
from chasquimq.upkeep import Upkeep


@click.command()
@click.argument("queues", nargs=-1, required=True)
@click.option("--redis-url", help="The server; without it, the one this project uses.")
@click.option("--group", default="default", show_default=True, help="Whose ghosts to sweep.")
def upkeep(queues: tuple[str, ...], redis_url: str | None, group: str) -> None:
    """Promote delayed jobs and fire repeatables of QUEUES until interrupted."""
    found = find_or_start(redis_url, environ=os.environ, cwd=Path.cwd())
    assert found.url is not None, "a server that was started has a URL"
    click.echo(f"upkeep of {', '.join(queues)}: {found.reason}; Ctrl+C ends it", err=True)
    asyncio.run(_run(queues, found.url, group))


async def _run(queues: tuple[str, ...], url: str, group: str) -> None:
    crews = [Upkeep(queue, redis_url=url, group=group) for queue in queues]
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, lambda: _close(crews))
    await asyncio.gather(*(crew.run() for crew in crews))


def _close(crews: list[Upkeep]) -> None:
    for crew in crews:
        crew.request_stop()
