"""Which server a command talks to, said once to whoever watches."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from chasquimq.cli.render import mask_url, talk
from chasquimq.errors import ServerUnreachable
from chasquimq.server.finder import find_or_start, find_server


def running_server(redis_url: str | None) -> str:
    """The URL of a server that runs; none is started just to look at its emptiness."""
    found = find_server(redis_url, environ=os.environ, cwd=Path.cwd())
    if found.url is None:
        raise ServerUnreachable(
            "a server must be named or run for this directory, found neither; give --redis-url, "
            "set CHASQUI_REDIS_URL, or start one with `chasqui server start`"
        )
    _tell(found.url, found.reason)
    return found.url


def any_server(redis_url: str | None, *, is_told: bool = True) -> str:
    """The URL of a server; the project's own is started where there is none."""
    found = find_or_start(redis_url, environ=os.environ, cwd=Path.cwd())
    assert found.url is not None, "a server that was started has a URL"
    if is_told:
        _tell(found.url, found.reason)
    return found.url


def _tell(url: str, reason: str) -> None:
    if sys.stderr.isatty():
        talk(f"server: {mask_url(url)} ({reason})")
