"""Where a server listens: a unix socket, a loopback port, or both."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

LOOPBACK_HOST = "127.0.0.1"
UNIX_SCHEME = "unix://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A socket path, a port (0: none), or both; the socket is preferred."""

    socket_path: Path | None = None
    port: int = 0

    @property
    def url(self) -> str:
        if self.socket_path is not None:
            return UNIX_SCHEME + quote(str(self.socket_path))
        return f"redis://{LOOPBACK_HOST}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        if self.socket_path is None:
            return socket.create_connection((LOOPBACK_HOST, self.port), timeout_s)
        return _connect_unix(self.socket_path, timeout_s)


def unix_address(url: str) -> Address | None:
    """Read back a `unix://` URL; None: it is something else."""
    if not url.startswith(UNIX_SCHEME + "/"):
        return None
    return Address(socket_path=Path(unquote(url.removeprefix(UNIX_SCHEME))))


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK_HOST, 0))
        return int(probe.getsockname()[1])


def _connect_unix(path: Path, timeout_s: float) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(timeout_s)
    try:
        link.connect(str(path))
    except BaseException:
        link.close()
        raise
    return link
