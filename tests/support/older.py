"""Servers as they were before a command came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.raw import Raw
from support.servers import ServerKind


@asynccontextmanager
async def without_many_set(kind: ServerKind) -> AsyncIterator[tuple[str, Raw]]:
    """The URL of a server of this kind that does not know MSETEX, and a look at its queue `q`."""
    with kind.session(args=("--rename-command", "MSETEX", "")) as server:
        raw = await Raw.open(server.url, "q")
        try:
            yield server.url, raw
        finally:
            await raw.close()
