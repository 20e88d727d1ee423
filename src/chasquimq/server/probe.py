"""Describes a server process: its address, its command line, and what it answers about itself."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, get_args
from urllib.parse import quote, unquote

from chasquimq.errors import SettingsError

LOOPBACK_HOST = "127.0.0.1"
UNIX_SCHEME = "unix://"
# Where other systems than Linux keep the user that listens: level and option.
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1


# ── the address ───────────────────────────────────────────────────────────────────────────────────


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
    """Return a loopback port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK_HOST, 0))
        return int(probe.getsockname()[1])


def _connect_unix(path: Path, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
        check_peer(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def check_peer(connection: socket.socket, path: Path | str) -> None:
    """Refuse a server of another user, which may listen where our server did.

    Raises:
        PermissionError: another user listens there.
    """
    user = _peer_user(connection)
    if user is not None and user != os.getuid():
        raise PermissionError(f"user {os.getuid()} must listen on {path}, found user {user}")


def _peer_user(connection: socket.socket) -> int | None:
    """Return the user that listens; None where the system does not say."""
    if sys.platform == "linux":
        said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", said)[1]
    try:
        said = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 128)
        return struct.unpack_from("=II", said)[1]
    except (OSError, struct.error):
        return None


# ── the command line ──────────────────────────────────────────────────────────────────────────────

# One name for every server, so that two on one directory meet the same lock.
DATA_LOCK_NAME = "data.lock"

AofMode = Literal["no", "everysec", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """All that a server process needs to know before it starts."""

    binary: Path
    address: Address
    data_dir: Path
    log_path: Path
    lock_path: Path
    aof: AofMode = "everysec"
    extra: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.aof not in get_args(AofMode):
            raise SettingsError("aof", self.aof, '"no", "everysec" or "always"')

    @property
    def command(self) -> list[str]:
        return [str(self.binary), *self._storage(), *self._listening(), *self.extra]

    def _storage(self) -> list[str]:
        fsync = [] if self.aof == "no" else ["--appendfsync", self.aof]
        appendonly = ["--appendonly", "no" if self.aof == "no" else "yes", *fsync]
        # A queue that evicts loses jobs; a full server must say so instead.
        evicting = ["--maxmemory-policy", "noeviction"]
        return ["--dir", str(self.data_dir), "--save", "", *appendonly, *evicting]

    def _listening(self) -> list[str]:
        tcp = ["--bind", LOOPBACK_HOST, "--port", str(self.address.port)]
        if self.address.socket_path is None:
            return tcp
        return [*tcp, "--unixsocket", str(self.address.socket_path), "--unixsocketperm", "700"]


# ── what a server answers ─────────────────────────────────────────────────────────────────────────

ANSWER_TIMEOUT_S = 1.0
REPLY_BYTES_MAX = 1 << 20

Reply = str | list["Reply"] | None
Command = tuple[str, ...]


class RefusedReply(Exception):
    """The server answered with an error of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a server reports about itself."""

    pid: int
    kind: str
    version: str
    port: int
    uptime_s: int
    data_dir: str
    is_ready: bool


def identify(address: Address, timeout_s: float = ANSWER_TIMEOUT_S) -> Identity | None:
    """Ask the server at `address` about itself; None where no server answers."""
    questions = (("INFO", "server"), ("CONFIG", "GET", "dir"), ("PING",))
    try:
        about, directory, ping = ask(address, questions, timeout_s)
        return _identity(about, directory, ping)
    except (OSError, ValueError, KeyError, RecursionError, RefusedReply):
        return None


def is_serving(identity: Identity, data_dir: Path) -> bool:
    """True: this server works in `data_dir`, whatever the path to it is called by now."""
    try:
        return data_dir.samefile(identity.data_dir)
    except OSError:
        return False


def ask(address: Address, commands: Sequence[Command], timeout_s: float) -> list[Reply]:
    """Send all commands in one write and read one reply each; an error reply is its text."""
    with address.connect(timeout_s) as connection, connection.makefile("rb") as stream:
        connection.sendall(b"".join(map(_pack, commands)))
        return [_read_or_text(stream) for _ in commands]


def send_command(address: Address, command: Command, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
    """Send one command whose only answer is a closed connection."""
    with address.connect(timeout_s) as connection:
        connection.sendall(_pack(command))
        connection.recv(1)


def _identity(about: Reply, directory: Reply, ping: Reply) -> Identity:
    if not isinstance(about, str) or not isinstance(directory, list):
        raise ValueError("not the answers of a server")
    facts = dict(line.split(":", 1) for line in about.splitlines() if ":" in line)
    is_valkey = facts.get("server_name") == "valkey"
    return Identity(
        pid=int(facts["process_id"]),
        kind="valkey" if is_valkey else "redis",
        version=facts["valkey_version" if is_valkey else "redis_version"],
        port=int(facts["tcp_port"]),
        uptime_s=int(facts["uptime_in_seconds"]),
        data_dir=str(directory[-1]),
        is_ready=ping == "PONG",
    )


def _pack(command: Command) -> bytes:
    words = [word.encode() for word in command]
    head = b"*%d\r\n" % len(words)
    return head + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _read_or_text(stream: BinaryIO) -> Reply:
    try:
        return _read_reply(stream)
    except RefusedReply as refusal:
        return str(refusal)


def _read_reply(stream: BinaryIO) -> Reply:
    line = stream.readline(REPLY_BYTES_MAX)
    if not line.endswith(b"\r\n"):
        raise ValueError("the reply ended early")
    mark, rest = line[:1], line[1:-2].decode(errors="surrogateescape")
    match mark:
        case b"+" | b":":
            return rest
        case b"-":
            raise RefusedReply(rest)
        case b"$":
            return _read_bulk(stream, int(rest))
        case b"*":
            return [_read_reply(stream) for _ in range(int(rest))]
        case _:
            raise ValueError("not a reply")


def _read_bulk(stream: BinaryIO, size_bytes: int) -> str | None:
    if size_bytes < 0:
        return None
    if size_bytes > REPLY_BYTES_MAX:
        raise ValueError("the reply is too long")
    # Paths are bytes to the server; surrogates keep what is not UTF-8.
    return stream.read(size_bytes + 2)[:-2].decode(errors="surrogateescape")
