"""Where a server listens: a unix socket, a loopback port, or both."""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

LOOPBACK_HOST = "127.0.0.1"
UNIX_SCHEME = "unix://"
# Where other systems than Linux keep who listens: level, option, and the bytes up to the user.
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1


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
        check_peer(link, path)
    except BaseException:
        link.close()
        raise
    return link


def check_peer(link: socket.socket, path: Path | str) -> None:
    """Talk to nobody but ourselves: another user may listen where our server did.

    Raises:
        PermissionError: another user listens there.
    """
    user = _peer_user(link)
    if user is not None and user != os.getuid():
        raise PermissionError(f"user {os.getuid()} must listen on {path}, found user {user}")


def _peer_user(link: socket.socket) -> int | None:
    """Who listens; None: this system does not say."""
    if sys.platform == "linux":
        said = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", said)[1]
    try:
        said = link.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 128)
        return struct.unpack_from("=II", said)[1]
    except (OSError, struct.error):
        return None
