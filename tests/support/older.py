"""Servers as they were before a command came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from support.raw import Raw
from support.servers import ServerKind, knows


@asynccontextmanager
async def without_many_set(kind: ServerKind) -> AsyncIterator[tuple[str, Raw]]:
    """The URL of a server of this kind that does not know MSETEX, and a look at its queue `q`."""
    hidden = ("--rename-command", "MSETEX", "") if _has_many_set(kind) else ()
    with kind.session(args=hidden) as server:
        raw = await Raw.open(server.url, "q")
        try:
            yield server.url, raw
        finally:
            await raw.close()


@cache
def _has_many_set(kind: ServerKind) -> bool:
    # A server refuses to hide what it does not have.
    with kind.session() as server:
        return knows(server.url, "MSETEX")
