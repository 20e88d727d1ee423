"""Which server a command talks to, said once to whoever watches."""

from __future__ import annotations

import logging
import sys

from chasquimq.cli.render import mask_url, talk
from chasquimq.errors import ServerUnreachable
from chasquimq.model.log import get_logger
from chasquimq.server.finder import DEFAULT_URL, Found, find_or_start, find_server

logger = get_logger(__name__)
# Why the command took the server that it took last, for the log and for an error.
chosen: list[Found] = []


def running_server(redis_url: str | None) -> str:
    """The URL of a server that runs; none is started just to look at its emptiness."""
    found = find_server(redis_url)
    if found.url is None:
        raise ServerUnreachable(
            "a server must be named or run for this directory, found neither; give --redis-url "
            f"(programs that name none use {DEFAULT_URL}), set CHASQUI_REDIS_URL, or start one "
            "with `chasqui server start`"
        )
    return _checked(found, found.url, is_told=True)


def any_server(redis_url: str | None, *, is_told: bool = True) -> str:
    """The URL of a server; the project's own is started where there is none."""
    found = find_or_start(redis_url)
    assert found.url is not None, "a server that was started has a URL"
    if found.binary is not None:
        _tell_started(mask_url(found.url))
    return _checked(found, found.url, is_told=is_told)


def _tell_started(address: str) -> None:
    """Warn of a server that goes on running: in the log, or on stderr where a command has none."""
    sentence = (
        f"no server was named, started one for this project at {address}; set CHASQUI_REDIS_URL "
        "for production"
    )
    if logging.root.handlers:
        logger.warning("%s", sentence)
    else:
        talk(f"warning: {sentence}")


def reason_of_choice() -> str:
    """Why the command took the server that it took last; empty where it took none."""
    return chosen[0].reason if chosen else ""


def _checked(found: Found, url: str, *, is_told: bool) -> str:
    from chasquimq.inspector import check_found

    check_found(found)
    chosen[:] = [found]
    if is_told and sys.stderr.isatty():
        talk(f"server: {mask_url(url)} ({found.reason})")
    return url
