"""Which servers the tests run on: the embedded Valkey, and each binary named in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from chasquimq.server.launch import SessionServer
from chasquimq.settings import ConnectionSettings
from chasquimq.store.net.blocking import BlockingConnection


@dataclass(frozen=True)
class ServerKind:
    """A kind of server to test on; no binary means the embedded one."""

    label: str
    binary: Path | None

    def session(self, **options) -> SessionServer:
        return SessionServer(binary=self.binary, **options)


def server_kinds() -> list[ServerKind]:
    named = os.environ.get("CHASQUI_TEST_SERVERS", "")
    binaries = [Path(text) for text in named.split(os.pathsep) if text]
    return [ServerKind("valkey", None), *(ServerKind(_label(b), b) for b in binaries)]


def knows(url: str, command: str) -> bool:
    """Whether the server at this address has a command."""
    connection = BlockingConnection(ConnectionSettings(url=url))
    try:
        return connection.call("COMMAND", "INFO", command) != [None]
    finally:
        connection.close()


def _label(binary: Path) -> str:
    folder = binary.parent.name
    return folder if folder.startswith(("redis", "valkey")) else binary.name
